/* σ(v) = max(0, 1 − log(1 + e^{β(1−v)})/β) and its slope in float32, one pass over memory each.

   Every operation is rounded as IEEE 754 says, with fused multiply-adds only where FMA asks for one, so a value
   is the same wherever it stands: in a vector, in the rest of an array, on any thread. Build without -ffast-math
   and with -ffp-contract=off. */

#include <stdint.h>
#include <string.h>

#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* A block is computed in steps so short that the processor overlaps many of them, and stays in the nearest cache
   between steps. Where two arrays are read, the processor's own look ahead is too short for memory, and AHEAD values
   further on are asked for, one a LINE. Up to SERIAL values no second thread is worth waking, as in torch; a thread
   takes a PIECE of blocks at a time. */
enum { BLOCK = 128, PIECE = 32 * BLOCK, AHEAD = 512, LINE = 16, SERIAL = 1 << 15 };

/* σ leaves 0 at v₀ = zero + rest. e^{−βv₀} = 1 − a turns σ into u − log(1 + w)/β, where u = v − v₀ and
   w = a·(e^{βu} − 1). Above v = 1 the term in u stays at `cap` = 1 − v₀, and the exponent is that of the mirror point.
   In powers of two, w = scale·2^x − base with x = steep·u + offset, but not below `low`, where w hardly changes, nor
   the slope's exponent below `flat`. Limits are data: from literals compilers make a case of its own. */
typedef struct {
    float zero, rest, cap, mirror, steep, offset, low, scale, base, factor, flat, nought, one;
} Constants;

/* Each is one instruction, and NaN in the second place passes. */
static inline float at_most(float limit, float x) { return limit < x ? limit : x; }
static inline float at_least(float limit, float x) { return limit > x ? limit : x; }

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float distance(float v, Constants c) { return (v - c.zero) - c.rest; }

static inline float exponent(float v, Constants c) {
    float u = distance(v, c);
    return at_least(c.low, FMA(at_most(u, c.mirror - u), c.steep, c.offset));
}

/* scale·2^x − base, where |x| ≤ 126 and scale·2^x is normal. With k the integer nearest to x and f the rest,
   2^x − 1 = 2^k·(2^f − 1) + (2^k − 1), so that nothing is lost near x = 0. Adding 3·2^22 leaves k in the lowest bits.
   The polynomial is (2^f − 1)/f on [−1/2, 1/2], with a relative error of 2^-26. */
static inline float power(float x, float scale, float base) {
    const float shifter = 12582912.0f;
    float shifted = x + shifter;
    float f = x - (shifted - shifter), f2 = f * f;
    float whole = of_bits((bits_of(shifted) << 23) + bits_of(scale));
    float high = FMA(f2, FMA(f, 1.5398399e-4f, 1.3387768e-3f), FMA(f, 9.618248e-3f, 5.5503666e-2f));
    float quotient = FMA(f2, high, FMA(f, 0.24022649f, 0.6931472f));
    return FMA(whole * f, quotient, whole - base);
}

/* log(1 + w) = 2·artanh(s), s = w/(2 + w), for −1/2 ≤ w ≤ 1. The polynomial is artanh(s)/s with a relative error of
   2^-22, of which the division by β leaves little; `factor` is −2/β. */
static inline float activation(float v, float w, Constants c) {
    float s = w / (2.0f + w), z = s * s;
    float quotient = FMA(z, FMA(z, FMA(z, 0.16991782f, 0.19817984f), 0.3333674f), 1.0f);
    float y = FMA(s * c.factor, quotient, at_most(c.cap, distance(v, c)));
    return at_most(c.one, at_least(c.nought, y));
}

/* Whole blocks. One is ended while the next is begun: sums and products have units of their own, and the steps have
   too many of the one or of the other to keep both busy. */
static void forward_blocks(const float *restrict v, float *restrict y, int64_t count, Constants c) {
    float t[BLOCK];
    for (int i = 0; i < BLOCK; i++) t[i] = exponent(v[i], c);
    for (; count > 0; count -= BLOCK, v += BLOCK, y += BLOCK) {
        const float *next = count > BLOCK ? v + BLOCK : v;
        for (int i = 0; i < BLOCK; i++) t[i] = power(t[i], c.scale, c.base);
        for (int i = 0; i < BLOCK; i++) {
            float w = t[i];
            t[i] = exponent(next[i], c);
            y[i] = activation(v[i], w, c);
        }
    }
}

static inline void ask_ahead(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(x + i + AHEAD);
}

/* grad·(1 − e^{−β(1−y)}), 0 where y is. */
static void backward_block(const float *restrict grad, const float *restrict y, float *restrict out, int64_t count,
                           Constants c) {
    ask_ahead(grad, count);
    ask_ahead(y, count);
    for (int64_t i = 0; i < count; i++) {
        float product = grad[i] * -power(at_least(c.flat, c.steep * (y[i] - 1.0f)), 1.0f, 1.0f);
        out[i] = y[i] <= 0.0f ? 0.0f : product;
    }
}

static inline int64_t left_from(int64_t start, int64_t count, int64_t most) {
    return count - start < most ? count - start : most;
}

void soft_clamped_relu(const float *v, float *y, int64_t count, const Constants *constants, int threads) {
    Constants c = *constants;
    int64_t rest = count % BLOCK, whole = count - rest;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > SERIAL)
    for (int64_t i = 0; i < whole; i += PIECE) forward_blocks(v + i, y + i, left_from(i, whole, PIECE), c);
    if (rest > 0) {
        float from[BLOCK] = {0}, to[BLOCK];
        memcpy(from, v + whole, rest * sizeof *from);
        forward_blocks(from, to, BLOCK, c);
        memcpy(y + whole, to, rest * sizeof *to);
    }
}

void soft_clamped_relu_backward(const float *grad, const float *y, float *out, int64_t count,
                                const Constants *constants, int threads) {
    Constants c = *constants;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > SERIAL)
    for (int64_t i = 0; i < count; i += BLOCK) backward_block(grad + i, y + i, out + i, left_from(i, count, BLOCK), c);
}

#ifdef _OPENMP
const int soft_clamped_relu_threads = 1;
#else
const int soft_clamped_relu_threads = 0;
#endif
