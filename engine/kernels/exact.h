// The specified arithmetic of sampling (`engine/worker/torch/sampler.py`): exp, log and random bits.
//
// The same bits on every instruction set: each operation is rounded by itself, in the order that
// the specification has, and sums are of integers.
#pragma once
#include "vec.h"

constexpr int GROUP = 64;     // neighbours that one vector of counters serves
constexpr int COUNTERS = 16;  // counters of a group

// 64-bit lanes of a vector, and 32-bit ones without sign.
typedef uint64_t V64 __attribute__((vector_size(4 * W)));
typedef uint32_t V32 __attribute__((vector_size(4 * W)));

// ---- comparisons: a bit for each lane, the first one lowest
constexpr uint32_t ALL_LANES = (1u << W) - 1;
#if defined(__AVX512F__)
static inline uint32_t lanes_greater(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline uint32_t lanes_at_least(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
static inline uint32_t lanes_equal(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
// Also true for NaN.
static inline uint32_t lanes_not_below(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
static inline V64 wide_product(V64 a, V64 b) {  // of the low halves of each lane
    return (V64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
// The upper half of each lane below the lower one: a shift would wait for the unit that multiplies.
static inline V64 halves_swapped(V64 a) {
    return (V64)_mm512_shuffle_epi32((__m512i)a, _MM_PERM_CDAB);
}
static inline V64 bits_of_sum(__m256 floats, double constant) {
    return (V64)_mm512_add_pd(_mm512_cvtps_pd(floats), _mm512_set1_pd(constant));
}
static inline V64 low_half_plus(Vf e, double constant) {
    return bits_of_sum(_mm512_castps512_ps256(e), constant);
}
static inline V64 high_half_plus(Vf e, double constant) {
    return bits_of_sum(_mm512_extractf32x8_ps(e, 1), constant);
}
#elif defined(__AVX2__)
#define COMPARED(a, b, how) ((uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, how)))
static inline uint32_t lanes_greater(Vf a, Vf b) { return COMPARED(a, b, _CMP_GT_OQ); }
static inline uint32_t lanes_at_least(Vf a, Vf b) { return COMPARED(a, b, _CMP_GE_OQ); }
static inline uint32_t lanes_equal(Vf a, Vf b) { return COMPARED(a, b, _CMP_EQ_OQ); }
static inline uint32_t lanes_not_below(Vf a, Vf b) { return COMPARED(a, b, _CMP_NLT_UQ); }
#undef COMPARED
static inline V64 wide_product(V64 a, V64 b) {
    return (V64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
static inline V64 halves_swapped(V64 a) { return (V64)_mm256_shuffle_epi32((__m256i)a, 0xb1); }
static inline V64 bits_of_sum(__m128 floats, double constant) {
    return (V64)_mm256_add_pd(_mm256_cvtps_pd(floats), _mm256_set1_pd(constant));
}
static inline V64 low_half_plus(Vf e, double constant) {
    return bits_of_sum(_mm256_castps256_ps128(e), constant);
}
static inline V64 high_half_plus(Vf e, double constant) {
    return bits_of_sum(_mm256_extractf128_ps(e, 1), constant);
}
#else
static inline uint32_t lanes_greater(Vf a, Vf b) { return _mm_movemask_ps(_mm_cmpgt_ps(a, b)); }
static inline uint32_t lanes_at_least(Vf a, Vf b) { return _mm_movemask_ps(_mm_cmpge_ps(a, b)); }
static inline uint32_t lanes_equal(Vf a, Vf b) { return _mm_movemask_ps(_mm_cmpeq_ps(a, b)); }
static inline uint32_t lanes_not_below(Vf a, Vf b) {
    return _mm_movemask_ps(_mm_cmpnlt_ps(a, b));
}
static inline V64 wide_product(V64 a, V64 b) {
    return (V64)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
static inline V64 halves_swapped(V64 a) { return (V64)_mm_shuffle_epi32((__m128i)a, 0xb1); }
static inline V64 low_half_plus(Vf e, double constant) {
    return (V64)_mm_add_pd(_mm_cvtps_pd(e), _mm_set1_pd(constant));
}
static inline V64 high_half_plus(Vf e, double constant) {
    return (V64)_mm_add_pd(_mm_cvtps_pd(_mm_movehl_ps(e, e)), _mm_set1_pd(constant));
}
#endif

// ---- exp of y <= 0, and weights: rint(exp(y) * 2**40)
constexpr float EXP_LEAST = -64.f;   // y is not taken below
constexpr float NO_WEIGHT = -29.f;   // below, the weight is 0
constexpr double WEIGHT_ONE = 0x1p40;
// A float64 in [2**12, 2**13) has steps of 2**-40: adding 2**12 rounds to a weight, in its low bits.
constexpr double WEIGHT_SHIFT = 0x1p12;
constexpr uint64_t WEIGHT_SHIFT_BITS = 0x40b0000000000000u;

static inline Vf exact_exp(Vf y) {
    const float series[] = {(float)(1.0 / 120), (float)(1.0 / 24), (float)(1.0 / 6), .5f, 1.f, 1.f};
    Vf v = vmax(y, vset(EXP_LEAST));
    Vi n = vround(vmul(v, vset(1.44269504f)));
    Vf power = vfloat(n);
    Vf r = vadd(vsub(v, vmul(power, vset(0.693359375f))), vmul(power, vset(0.000212194440f)));
    Vf p = vset((float)(1.0 / 720));
    for (float c : series) p = vadd(vmul(p, r), vset(c));
    return vmul(p, vpower2(n));
}

// Sums of weights in 64-bit lanes; each vector added counts WEIGHT_SHIFT_BITS too much a lane.
struct WeightSum {
    V64 low = {}, high = {};
    int64_t vectors = 0;

    void add(Vf e) {
        low += low_half_plus(e, WEIGHT_SHIFT);
        high += high_half_plus(e, WEIGHT_SHIFT);
        vectors++;
    }
    int64_t total() const {
        uint64_t sum = 0;
        V64 both = low + high;
        for (int i = 0; i < W / 2; i++) sum += both[i];
        return (int64_t)(sum - (uint64_t)vectors * W * WEIGHT_SHIFT_BITS);
    }
};

// The weights of a vector's lanes.
static inline void store_weights(int64_t* out, Vf e) {
    V64 low = low_half_plus(e, WEIGHT_SHIFT) - WEIGHT_SHIFT_BITS;
    V64 high = high_half_plus(e, WEIGHT_SHIFT) - WEIGHT_SHIFT_BITS;
    memcpy(out, &low, sizeof low);
    memcpy(out + W / 2, &high, sizeof high);
}

// ---- log of a normal, positive number
static inline double exact_log(double value) {
    constexpr double divided[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                  1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
    uint64_t bits;
    memcpy(&bits, &value, 8);
    int exponent = (int)(bits >> 52) - 1022;
    bits = (bits & 0xfffffffffffffu) | 0x3fe0000000000000u;
    double mantissa;
    memcpy(&mantissa, &bits, 8);
    if (mantissa < 0.7071067811865476) {
        mantissa *= 2.0;
        exponent--;
    }
    double s = (mantissa - 1.0) / (mantissa + 1.0);
    double square = s * s;
    double series = 1.0 / 21;
    for (double coefficient : divided) series = series * square + coefficient;
    return exponent * 0.6931471805599453 + 2.0 * (s + s * square * series);
}

// ---- random bits: Philox4x32-10
constexpr int ROUNDS = 10;

// What a row's draw is of, and the keys of all rounds.
struct Draw {
    uint32_t position, choice;
    uint64_t keys[ROUNDS][2];

    Draw(uint64_t seed, uint32_t position, uint32_t choice) : position(position), choice(choice) {
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (auto& key : keys) {
            key[0] = k0;
            key[1] = k1;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
    }
};

// The 64 words of the group of tokens from `first` (a multiple of 64) on, in the order of tokens.
static inline void random_group(const Draw& draw, uint32_t first, uint32_t* words) {
    constexpr int PAIRS = COUNTERS / W;  // vectors of even counters, and as many of odd ones
    V64 even, c[2 * PAIRS][4];
    for (int lane = 0; lane < W / 2; lane++) even[lane] = 2 * lane;
    for (int i = 0; i < 2 * PAIRS; i++) {
        c[i][0] = even + (uint64_t)(first / GROUP * COUNTERS + i / 2 * W + i % 2);
        c[i][1] = V64{} + draw.position;
        c[i][2] = V64{} + draw.choice;
        c[i][3] = V64{};
    }
    const V64 m0 = V64{} + 0xD2511F53u, m1 = V64{} + 0xCD9E8D57u;
    for (const auto& key : draw.keys)
        // The upper halves of lanes are of no meaning: products do not read them.
        for (auto& x : c) {
            V64 a = wide_product(x[0], m0), b = wide_product(x[2], m1);
            x[0] = halves_swapped(b) ^ x[1] ^ (V64{} + key[0]);
            x[1] = b;
            x[2] = halves_swapped(a) ^ x[3] ^ (V64{} + key[1]);
            x[3] = a;
        }
    for (int word = 0; word < 4; word++)
        for (int pair = 0; pair < PAIRS; pair++) {
            V64 x = (c[2 * pair][word] & 0xffffffffu) | (c[2 * pair + 1][word] << 32);
            memcpy(words + word * COUNTERS + pair * W, &x, sizeof x);
        }
}

static inline double gumbel(uint32_t word) {
    return -exact_log(-exact_log((word + 0.5) * 0x1p-32));
}
