// One vector of floats as wide as the instruction set has, and the arithmetic that kernels use.
//
// Kernels are written once over `Vf`, `W` lanes wide. Nothing here lets a result depend on anything
// but its operands: no fused operation but `vfma`, no approximation but those written out.
// Activations that enter a product (`Act`) are bf16 where the processor multiplies bf16 pairs, else
// float. Weights, keys and values are bf16 everywhere, two of one product side by side (a pair).
#pragma once
#include <immintrin.h>
#include <cstdint>
#include <cstring>

typedef uint16_t bf16;

#if defined(__AVX512F__)
constexpr int W = 16;
typedef __m512 Vf;
typedef __m512i Vi;
static inline Vf vload(const float* p) { return _mm512_loadu_ps(p); }
static inline void vstore(float* p, Vf v) { _mm512_storeu_ps(p, v); }
static inline Vf vset(float x) { return _mm512_set1_ps(x); }
static inline Vf vadd(Vf a, Vf b) { return _mm512_add_ps(a, b); }
static inline Vf vsub(Vf a, Vf b) { return _mm512_sub_ps(a, b); }
static inline Vf vmul(Vf a, Vf b) { return _mm512_mul_ps(a, b); }
static inline Vf vdiv(Vf a, Vf b) { return _mm512_div_ps(a, b); }
static inline Vf vfma(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline Vf vmax(Vf a, Vf b) { return _mm512_max_ps(a, b); }
static inline Vf vmin(Vf a, Vf b) { return _mm512_min_ps(a, b); }
static inline Vi vround(Vf a) { return _mm512_cvtps_epi32(a); }
static inline Vf vfloat(Vi a) { return _mm512_cvtepi32_ps(a); }
static inline Vi viload(const void* p) { return _mm512_loadu_si512(p); }
static inline Vf vpower2(Vi n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
static inline Vf vlow(Vi pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
static inline Vf vhigh(Vi pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}
#elif defined(__AVX2__)
constexpr int W = 8;
typedef __m256 Vf;
typedef __m256i Vi;
static inline Vf vload(const float* p) { return _mm256_loadu_ps(p); }
static inline void vstore(float* p, Vf v) { _mm256_storeu_ps(p, v); }
static inline Vf vset(float x) { return _mm256_set1_ps(x); }
static inline Vf vadd(Vf a, Vf b) { return _mm256_add_ps(a, b); }
static inline Vf vsub(Vf a, Vf b) { return _mm256_sub_ps(a, b); }
static inline Vf vmul(Vf a, Vf b) { return _mm256_mul_ps(a, b); }
static inline Vf vdiv(Vf a, Vf b) { return _mm256_div_ps(a, b); }
static inline Vf vfma(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vf vmax(Vf a, Vf b) { return _mm256_max_ps(a, b); }
static inline Vf vmin(Vf a, Vf b) { return _mm256_min_ps(a, b); }
static inline Vi vround(Vf a) { return _mm256_cvtps_epi32(a); }
static inline Vf vfloat(Vi a) { return _mm256_cvtepi32_ps(a); }
static inline Vi viload(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline Vf vpower2(Vi n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline Vf vlow(Vi pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
static inline Vf vhigh(Vi pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}
#else
constexpr int W = 4;
typedef __m128 Vf;
typedef __m128i Vi;
static inline Vf vload(const float* p) { return _mm_loadu_ps(p); }
static inline void vstore(float* p, Vf v) { _mm_storeu_ps(p, v); }
static inline Vf vset(float x) { return _mm_set1_ps(x); }
static inline Vf vadd(Vf a, Vf b) { return _mm_add_ps(a, b); }
static inline Vf vsub(Vf a, Vf b) { return _mm_sub_ps(a, b); }
static inline Vf vmul(Vf a, Vf b) { return _mm_mul_ps(a, b); }
static inline Vf vdiv(Vf a, Vf b) { return _mm_div_ps(a, b); }
static inline Vf vfma(Vf a, Vf b, Vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
static inline Vf vmax(Vf a, Vf b) { return _mm_max_ps(a, b); }
static inline Vf vmin(Vf a, Vf b) { return _mm_min_ps(a, b); }
static inline Vi vround(Vf a) { return _mm_cvtps_epi32(a); }
static inline Vf vfloat(Vi a) { return _mm_cvtepi32_ps(a); }
static inline Vi viload(const void* p) { return _mm_loadu_si128((const __m128i*)p); }
static inline Vf vpower2(Vi n) {
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(127)), 23));
}
static inline Vf vlow(Vi pairs) { return _mm_castsi128_ps(_mm_slli_epi32(pairs, 16)); }
static inline Vf vhigh(Vi pairs) {
    return _mm_castsi128_ps(_mm_and_si128(pairs, _mm_set1_epi32((int)0xffff0000u)));
}
#endif

// Lanes whose bit is set (the first one's lowest) from `yes`, the others from `no`.
#if defined(__AVX512F__)
static inline Vf select_lanes(uint32_t bits, Vf yes, Vf no) {
    return _mm512_mask_blend_ps((__mmask16)bits, no, yes);
}
#else
static inline Vf select_lanes(uint32_t bits, Vf yes, Vf no) {
    typedef uint32_t Words __attribute__((vector_size(4 * W)));
    Words place;
    for (int i = 0; i < W; i++) place[i] = 1u << i;
    Words mask = (Words)((place & bits) != 0);
    return (Vf)(((Words)yes & mask) | ((Words)no & ~mask));
}
#endif

// Sums and largest of the lanes, halves by halves: one fixed order.
#if defined(__AVX512F__)
static inline float vsum(Vf v) { return _mm512_reduce_add_ps(v); }
static inline float vlargest(Vf v) { return _mm512_reduce_max_ps(v); }
#else
static inline float vsum(Vf v) {
    float x[W];
    vstore(x, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
static inline float vlargest(Vf v) {
    float x[W];
    vstore(x, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}
#endif

static inline float to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
// Nearest, ties to even; a NaN stays one.
static inline bf16 to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (bf16)((bits >> 16) | 0x40);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// 2**x for x <= 127, to about 2e-7 of it; below -126 it is 2**-126, as good as nothing.
static inline Vf vexp2(Vf x) {
    x = vmin(vmax(x, vset(-126.f)), vset(127.f));
    Vi n = vround(x);
    Vf r = vsub(x, vfloat(n));  // exact, in [-.5, .5]
    Vf p = vset(1.54035304e-4f);  // the Taylor series of 2**r
    p = vfma(p, r, vset(1.33335581e-3f));
    p = vfma(p, r, vset(9.61812911e-3f));
    p = vfma(p, r, vset(5.55041087e-2f));
    p = vfma(p, r, vset(2.40226507e-1f));
    p = vfma(p, r, vset(6.93147181e-1f));
    p = vfma(p, r, vset(1.f));
    return vmul(p, vpower2(n));
}
constexpr float LOG2E = 1.44269504f;

#if defined(__AVX512BF16__)
typedef bf16 Act;
static inline void store_act(Act* p, Vf v) {
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v));
}
static inline Vf as_act(Vf v) {  // what `store_act` rounds it to
    return _mm512_cvtpbh_ps(_mm512_cvtneps_pbh(v));
}
#else
typedef float Act;
static inline void store_act(Act* p, Vf v) { vstore(p, v); }
static inline Vf as_act(Vf v) { return v; }
#endif

// W floats as bf16, in memory.
static inline void store_bf16(bf16* p, Vf v) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v));
#else
    float x[W];
    vstore(x, v);
    for (int i = 0; i < W; i++) p[i] = to_bf16(x[i]);
#endif
}

// c[i][j] += a pair of row i times pairs of W columns j, for rows i and vectors j of columns.
// `a[i]` points to two activations, `b[j]` to W pairs. Two products a lane, the first one first.
template <int ROWS, int VECTORS>
static inline void multiply_pairs(Vf (&c)[ROWS][VECTORS], const Act* const* a, long offset,
                                  const bf16* const* b, long b_offset) {
#if defined(__AVX512BF16__)
    __m512bh v[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++) v[j] = (__m512bh)_mm512_loadu_si512(b[j] + b_offset);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        int32_t pair;
        memcpy(&pair, a[i] + offset, 4);
        __m512bh p = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) c[i][j] = _mm512_dpbf16_ps(c[i][j], p, v[j]);
    }
#else
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        Vf v[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            Vi pairs = viload(b[j] + b_offset);
            v[j] = half ? vhigh(pairs) : vlow(pairs);
        }
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            Vf p = vset(a[i][offset + half]);
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++) {
                c[i][j] = vfma(p, v[j], c[i][j]);
#if defined(__AVX2__) && !defined(__AVX512F__)
                // Twelve accumulators leave 4 of 16 registers for the rest: left alone, the
                // compiler keeps some of the twelve in memory.
                if constexpr (ROWS * VECTORS == 12) asm("" : "+x"(c[i][j]));
#endif
            }
        }
    }
#endif
}
