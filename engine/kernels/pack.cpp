// Brings weights into the layout that `model.h` describes, from the formats that checkpoints have.
#include <omp.h>
#include "library.h"
#include "model.h"

namespace {

enum Format : int32_t { BF16 = 0, F32 = 1, F16 = 2, F64 = 3 };

float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, rest = h & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | rest << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | rest << 13;
    } else {
        float f = (float)rest * 5.9604645e-8f;  // 2**-24, exact
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

template <class T>
T value_at(const void* source, long index) {  // tensors of a file need not be aligned
    T value;
    memcpy(&value, (const char*)source + index * sizeof(T), sizeof(T));
    return value;
}

inline float as_float(const void* source, Format format, long index) {
    switch (format) {
        case BF16: return to_float(value_at<uint16_t>(source, index));
        case F32: return value_at<float>(source, index);
        case F16: return half_to_float(value_at<uint16_t>(source, index));
        default: return (float)value_at<double>(source, index);
    }
}

inline bf16 as_bf16(const void* source, Format format, long index) {
    if (format == BF16) return value_at<uint16_t>(source, index);
    return to_bf16(as_float(source, format, index));
}

// The rows of a panel that are packed: where each is in a pair of inputs, and in the source.
struct Panel {
    int rows = 0;
    int place[PANEL];
    long from[PANEL];
};

// One pair of inputs of all rows. Whole lines are written; each row's line of the source is read
// again for the next pairs while it is in the cache.
inline void pack_pair(const Panel& p, bf16* target, const void* source, Format format, long first,
                      long second) {
    if (format == BF16 && first >= 0 && second == first + 1) {  // nearly always: as they are
        for (int i = 0; i < p.rows; i++)
            memcpy(target + p.place[i], (const char*)source + 2 * (p.from[i] + first), 4);
        return;
    }
    for (int i = 0; i < p.rows; i++) {
        if (first >= 0) target[p.place[i]] = as_bf16(source, format, p.from[i] + first);
        if (second >= 0) target[p.place[i] + 1] = as_bf16(source, format, p.from[i] + second);
    }
}

}  // namespace

// Packs rows [begin, begin + count) of a weight whose rows have `inputs` places: row r is source
// row `row_of[r - begin]` (-1: stays as it is), input k is source column `column_of[k]` (-1: zero).
// Columns of the source: `columns`.
TRIOLET_API void triolet_pack(bf16* weight, int64_t inputs, int64_t begin, int64_t count,
                              const int32_t* row_of, const int32_t* column_of, const void* source,
                              int32_t format, int64_t columns, int32_t threads) {
    long first = begin / PANEL, last = (begin + count + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (long panel = first; panel < last; panel++) {
        Panel p;
        for (int j = 0; j < PANEL; j++) {
            long row = panel * PANEL + j - begin;
            if (row < 0 || row >= count || row_of[row] < 0) continue;
            p.place[p.rows] = 2 * j;
            p.from[p.rows++] = (long)row_of[row] * columns;
        }
        bf16* target = weight + panel * PANEL * inputs;
        for (long k = 0; k < inputs; k += 2)
            pack_pair(p, target + k * PANEL, source, (Format)format, column_of[k],
                      column_of[k + 1]);
    }
}

// Rows of a table (embeddings) as bf16, each `stride` places apart.
TRIOLET_API void triolet_copy_rows(bf16* target, int64_t stride, const void* source, int32_t format,
                                   int64_t rows, int64_t columns, int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (long row = 0; row < rows; row++)
        for (long k = 0; k < columns; k++)
            target[row * stride + k] = as_bf16(source, (Format)format, row * columns + k);
}

// Floats of any format.
TRIOLET_API void triolet_to_floats(float* target, const void* source, int32_t format,
                                   int64_t count) {
    for (long i = 0; i < count; i++) target[i] = as_float(source, (Format)format, i);
}
