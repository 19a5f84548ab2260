/* ref_cpu.h - the arithmetic of the CPU class (docs/numerics.md, sections 2, 3 and 7) written as
 * its definition: scalar loops on plain arrays. The tests hold the kernels to these bits.
 * bf16 values are uint16_t; matrices are row-major. */
#ifndef OPS_REF_CPU_H
#define OPS_REF_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* out[n_row][n_out] = x[n_row][n_in] w[n_out][n_in]^T (+ bias), fp32 or bf16 */
void ref_cpu_matmul(const uint16_t *w, const uint16_t *bias, int64_t n_out, int64_t n_in,
                    const uint16_t *x, int64_t n_row, bool f32, void *out);
/* One row: y NULL: out = norm(h); else h = bf16(h + y) first. */
void ref_cpu_norm(uint16_t *h, const uint16_t *y, int64_t n, const uint16_t *gain, float eps,
                  uint16_t *out);
/* One head of d elements at position pos: optional norm, then RoPE with cos and sin of scale. */
void ref_cpu_rope(const uint16_t *x, int64_t d, const uint16_t *gain, float eps,
                  const float *inv_freq, double scale, int32_t pos, uint16_t *out);
/* One query vector q[d] at position pos over k and v [pos + 1] rows of d, row_stride apart. */
void ref_cpu_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, int64_t row_stride,
                       int64_t d, int32_t pos, float scale, uint16_t *out);
/* gate_up[2 n_ff], gate first */
void ref_cpu_silu_mul(const uint16_t *gate_up, int64_t n_ff, uint16_t *out);

#endif
