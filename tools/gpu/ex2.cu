/* ex2.cu - what is ex2.approx.ftz.f32? The 2^x of the attention of the GPU classes, over all
 * inputs.
 *
 * Prints a digest of all 2^32 results (the sum of a hash of each input and result, so no order
 * exists), the largest error, and whether it has what attention relies on. Exit 1 when it has not.
 *
 * usage: ex2
 *
 * Invariant: every input is tried; nothing is sampled. */
#include "device.cuh"

#include <math.h>
#include <string.h>

struct survey {
    unsigned long long digest, above_one, falls, flushed;
    unsigned long long worst; /* bits of the largest error, in units of the last place */
};

/* The digest, and what holds for all inputs. */
__global__ void survey_all(survey *s)
{
    unsigned long long digest = 0, above_one = 0, falls = 0, flushed = 0;
    double worst = 0;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
         i < 1ull << 32; i += (unsigned long long)gridDim.x * blockDim.x) {
        float x = __uint_as_float((uint32_t)i), y = ex2(x);
        digest += hash64(i << 32 | __float_as_uint(y));
        if (x != x) continue;
        above_one += x <= 0 && y > 1;
        /* the neighbour above: towards zero for a negative number */
        if (fabsf(x) < INFINITY && x != 0) {
            float above = __uint_as_float((uint32_t)i + (x < 0 ? -1 : 1));
            falls += ex2(above) < y;
        }
        double exact = exp2((double)x);
        if (x < 0 && y == 0 && exact >= 0x1p-126) flushed++;
        if (exact < 0x1p-126 || exact >= 0x1p128) continue;
        double error = fabs((double)y - exact) / exp2(floor(log2(exact)) - 23);
        worst = fmax(worst, error);
    }
    atomicAdd(&s->digest, digest);
    atomicAdd(&s->above_one, above_one);
    atomicAdd(&s->falls, falls);
    atomicAdd(&s->flushed, flushed);
    atomicMax(&s->worst, (unsigned long long)__double_as_longlong(worst));
}

__global__ void survey_points(float *out)
{
    out[0] = ex2(0.0f);
    out[1] = ex2(-0.0f);
    out[2] = ex2(-INFINITY);
}

int main()
{
    survey *d, s = {};
    float *points, at[3];
    double worst;
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaMalloc(&d, sizeof *d));
    CHECK(cudaMalloc(&points, sizeof at));
    CHECK(cudaMemset(d, 0, sizeof *d));
    survey_all<<<1056, 256>>>(d);
    survey_points<<<1, 1>>>(points);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(&s, d, sizeof s, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(at, points, sizeof at, cudaMemcpyDeviceToHost));
    memcpy(&worst, &s.worst, sizeof worst);
    printf("device %s, ex2.approx.ftz.f32 over all inputs\n", prop.name);
    printf("digest %016llx\n", s.digest);
    printf("largest error %.4f units of the last place (normal results)\n", worst);
    printf("at 0, -0, -inf: %a %a %a\n", at[0], at[1], at[2]);
    printf("x <= 0 with a result above 1: %llu\n", s.above_one);
    printf("neighbours between which it falls: %llu\n", s.falls);
    printf("normal results flushed to zero: %llu\n", s.flushed);
    return s.above_one || s.falls || s.flushed || at[0] != 1 || at[1] != 1 || at[2] != 0;
}
