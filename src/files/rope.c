/* rope.c - owns the rotary frequencies of a configuration.
 *
 * Invariant: computed in double by num.h and rounded once to fp32, so they have the same bits on
 * every machine. */
#include <math.h>

#include "base/num.h"
#include "files/config.h"

#define TWO_PI 6.283185307179586476925286766559
#define LN_2   0.693147180559945309417232121458

/* The corrected dimension of yarn: where a frequency makes n turns over the original context. */
static double yarn_dim(const config *c, double n)
{
    return c->d_head * num_log(c->original_ctx / (TWO_PI * n)) / (2.0 * num_log(c->theta));
}

static double yarn_m(double s, double k) { return s <= 1.0 ? 1.0 : 0.1 * k * num_log(s) + 1.0; }

static double yarn_scale(const config *c)
{
    if (c->attn_factor != 0.0) return c->attn_factor;
    if (c->mscale != 0.0 && c->mscale_all_dim != 0.0)
        return yarn_m(c->factor, c->mscale) / yarn_m(c->factor, c->mscale_all_dim);
    return yarn_m(c->factor, 1.0);
}

/* The dimensions between which yarn goes from unscaled to scaled. */
static void yarn_range(const config *c, double *lo, double *hi)
{
    *lo = yarn_dim(c, c->beta_fast);
    *hi = yarn_dim(c, c->beta_slow);
    if (c->yarn_truncate) {
        *lo = floor(*lo);
        *hi = ceil(*hi);
    }
    if (*lo < 0.0) *lo = 0.0;
    if (*hi > c->d_head - 1) *hi = c->d_head - 1;
    if (*lo == *hi) *hi += 0.001;
}

static double scale_llama3(const config *c, double f)
{
    double wave = TWO_PI / f, n = c->original_ctx;
    if (wave < n / c->high_freq) return f;
    if (wave > n / c->low_freq) return f / c->factor;
    double m = (n / wave - c->low_freq) / (c->high_freq - c->low_freq);
    return (1.0 - m) * f / c->factor + m * f;
}

corun_status config_rope_table(const config *c, const float *factors, float *inv_freq,
                               double *scale)
{
    double log2_theta = num_log(c->theta) / LN_2, lo = 0.0, hi = 0.0;
    *scale = 1.0;
    if (!factors && c->rope == CONFIG_ROPE_YARN) {
        yarn_range(c, &lo, &hi);
        *scale = yarn_scale(c);
    }
    for (int32_t i = 0; i < c->d_head / 2; i++) {
        double f = num_exp2(-2.0 * i / c->d_head * log2_theta), ramp;
        if (factors) {
            if (!(factors[i] > 0.0f) || !isfinite(factors[i]))
                FAIL(CORUN_EFORMAT, "tensor \"rope_freqs.weight\": value %d is %g, not above 0", i,
                     (double)factors[i]);
            inv_freq[i] = (float)(f / (double)factors[i]);
            continue;
        }
        switch (c->rope) {
        case CONFIG_ROPE_DEFAULT: break;
        case CONFIG_ROPE_LINEAR: f = f / c->factor; break;
        case CONFIG_ROPE_LLAMA3: f = scale_llama3(c, f); break;
        case CONFIG_ROPE_YARN:
            ramp = (i - lo) / (hi - lo);
            ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
            f = f / c->factor * ramp + f * (1.0 - ramp);
            break;
        }
        inv_freq[i] = (float)f;
    }
    return CORUN_OK;
}
