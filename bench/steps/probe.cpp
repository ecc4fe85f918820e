// What this machine can do at most: how fast it reads memory, how fast it multiplies bf16 values.
// The floors of benchmarks are made of these two. Compiled when they are asked for, with the flags
// of the kernels of one instruction set.
#include "library.h"

#include <omp.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

typedef int64_t Words __attribute__((vector_size(64)));

// Independent accumulators: enough to hide the latency of a product.
constexpr int kProducts = 16;

// Reads so many places at once, each in order: processors differ in how many they fetch ahead.
template <int kStreams>
Words read_part(const Words* begin, const Words* end) {
    const int64_t length = (end - begin) / kStreams;
    Words sums[kStreams] = {};
    for (int64_t i = 0; i < length; i++)
        for (int stream = 0; stream < kStreams; stream++) sums[stream] ^= begin[stream * length + i];
    for (begin += kStreams * length; begin < end; begin++) sums[0] ^= *begin;
    for (int stream = 1; stream < kStreams; stream++) sums[0] ^= sums[stream];
    return sums[0];
}

// Products and sums of bf16 pairs where the processor has them, else of the floats they become.
// Returns how many operations one turn of `multiply` is, an addition and a product two.
#if defined(__AVX512BF16__)
constexpr double kTurnOperations = kProducts * 32 * 2.0;

float multiply(int64_t turns) {
    __m512 sums[kProducts];
    for (auto& each : sums) each = _mm512_setzero_ps();
    __m512bh left = (__m512bh)_mm512_set1_epi16(0x3f80), right = (__m512bh)_mm512_set1_epi16(0x3a00);
    for (int64_t turn = 0; turn < turns; turn++) {
        for (auto& each : sums) each = _mm512_dpbf16_ps(each, left, right);
        asm volatile("" : "+v"(left), "+v"(right));  // or the compiler takes the loop away
    }
    float whole = 0;
    for (auto& each : sums) whole += _mm512_reduce_add_ps(each);
    return whole;
}
#elif defined(__AVX512F__)
constexpr double kTurnOperations = kProducts * 16 * 2.0;

float multiply(int64_t turns) {
    __m512 sums[kProducts];
    for (auto& each : sums) each = _mm512_setzero_ps();
    __m512 left = _mm512_set1_ps(1.0f), right = _mm512_set1_ps(0.001f);
    for (int64_t turn = 0; turn < turns; turn++) {
        for (auto& each : sums) each = _mm512_fmadd_ps(left, right, each);
        asm volatile("" : "+v"(left), "+v"(right));
    }
    float whole = 0;
    for (auto& each : sums) whole += _mm512_reduce_add_ps(each);
    return whole;
}
#elif defined(__FMA__)
// Sixteen registers hold no more.
constexpr int kNarrow = 12;
constexpr double kTurnOperations = kNarrow * 8 * 2.0;

float multiply(int64_t turns) {
    __m256 sums[kNarrow];
    for (auto& each : sums) each = _mm256_setzero_ps();
    __m256 left = _mm256_set1_ps(1.0f), right = _mm256_set1_ps(0.001f);
    for (int64_t turn = 0; turn < turns; turn++) {
        for (auto& each : sums) each = _mm256_fmadd_ps(left, right, each);
        asm volatile("" : "+x"(left), "+x"(right));
    }
    float lanes[8], whole = 0;
    for (auto& each : sums) {
        _mm256_storeu_ps(lanes, each);
        for (float lane : lanes) whole += lane;
    }
    return whole;
}
#else
typedef float Four __attribute__((vector_size(16)));
constexpr int kNarrow = 12;
constexpr double kTurnOperations = kNarrow * 4 * 2.0;

float multiply(int64_t turns) {
    Four sums[kNarrow] = {}, left = {1, 1, 1, 1}, right = {0.001f, 0.001f, 0.001f, 0.001f};
    for (int64_t turn = 0; turn < turns; turn++) {
        for (auto& each : sums) each += left * right;
        asm volatile("" : "+x"(left), "+x"(right));
    }
    float whole = 0;
    for (auto& each : sums) whole += each[0] + each[1] + each[2] + each[3];
    return whole;
}
#endif

}  // namespace

// Reads `bytes` (a multiple of 64, aligned to that) once, each thread its part, in one stream or, if
// `several`, in four; a checksum, so that the reading cannot be left out.
TRIOLET_API int64_t triolet_probe_read(const void* memory, int64_t bytes, int threads,
                                       int several) {
    const Words* words = static_cast<const Words*>(memory);
    const int64_t count = bytes / static_cast<int64_t>(sizeof(Words));
    int64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(^ : sum)
    {
        const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        const Words* begin = words + count * part / parts;
        const Words* end = words + count * (part + 1) / parts;
        const Words found = several ? read_part<4>(begin, end) : read_part<1>(begin, end);
        for (int i = 0; i < 8; i++) sum ^= found[i];
    }
    return sum;
}

// Multiplies and adds in registers, `turns` times in each thread; returns the operations of all.
TRIOLET_API double triolet_probe_products(int64_t turns, int threads) {
    double operations = 0;
    float sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : operations, sum)
    {
        sum += multiply(turns);
        operations += kTurnOperations * static_cast<double>(turns);
    }
    volatile float sink = sum;
    (void)sink;
    return operations;
}
