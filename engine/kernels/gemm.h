// Products of activations with packed weights: rows of any number, panels of 64 outputs.
//
// Bitwise rule: an output is the sum over its inputs in ascending order, in one accumulator,
// whatever the number of rows, the tile its row falls into and the thread. So tiles may be of any
// height, and work may go to whichever thread is free.
#pragma once
#include <algorithm>
#include "model.h"

// The largest tile of accumulators that the registers hold: rows, and vectors of columns.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2;
#else
constexpr int TILE_ROWS = 4, TILE_VECTORS = 2;
#endif

// Vectors of columns in a tile of so many rows. Each accumulator waits for its own last addition, so
// few rows need many of them. A tile that is narrower than a panel goes through it in several passes.
constexpr int tile_vectors(int rows) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return rows == 1 ? 8 : rows <= 3 ? 4 : TILE_VECTORS;
#else
    return TILE_VECTORS;
#endif
}

constexpr long PAIR_ROW = 2 * PANEL;      // elements of one pair of inputs in a panel

struct Product {
    const Act* a;
    long a_stride;
    const bf16* weight;
    long pairs;  // inputs / 2
    int rows;
    const int32_t* row_of = nullptr;  // where each row is in `a`; null: one after the other
};

// So few tiles go through a panel side by side, one stretch of it after the other, and fetch the
// next stretch meanwhile. Several passes over a whole panel would each read one cache line of two or
// four from memory; over a stretch they read it from the first cache. Intel's processors are quicker
// so with one pass, too, and get the objects without bf16.
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
constexpr int TILES_ABREAST = 2;
constexpr long STRETCH = 128;  // pairs of inputs, 32 KiB of weights
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int TILES_ABREAST = 2;
constexpr long STRETCH = 64;  // half of a first cache of 32 KiB
#else
constexpr int TILES_ABREAST = 0;
constexpr long STRETCH = 128;
#endif
// Shorter panels are of models so small that a cache has all of them: one pass needs no stretches.
constexpr long ABREAST_PAIRS = 256;

// Turns of a tile's loop: pairs [begin, end) of inputs, in each pass; and what is fetched in them
// for later, `lines` cache lines from `from` on.
struct Turns {
    long begin, end;
    const char* from;
    long lines;
};

// Fetches LINES cache lines for each pair of inputs, a share of them in each pass. Sums of all but
// the first turns go on from `out`. Not merged into its callers: the compiler would run out of
// registers.
template <int ROWS, int LINES>
static __attribute__((noinline)) void multiply_tile(const Product& p, int row, const bf16* panel,
                                                    float* out, Turns turns) {
    constexpr int VECTORS = tile_vectors(ROWS), FETCHED = std::max(1, LINES * VECTORS * W / PANEL);
    const Act* a[ROWS];
    for (int i = 0; i < ROWS; i++)
        a[i] = p.a + (p.row_of ? p.row_of[row + i] : row + i) * p.a_stride;
    long turns_left = (turns.lines + FETCHED - 1) / FETCHED;  // that fetch
    const char* from = turns.from;
    for (int column = 0; column < PANEL; column += VECTORS * W) {
        Vf c[ROWS][VECTORS];
        const bf16* b[VECTORS];
        for (int j = 0; j < VECTORS; j++) b[j] = panel + 2 * (column + j * W);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < VECTORS; j++)
                c[i][j] = turns.begin ? vload(out + i * PANEL + column + j * W) : vset(0.f);
        long k = turns.begin, fetching = std::min(k + turns_left, turns.end);
        turns_left -= fetching - k;
        for (; k < fetching; k++) {
            for (int i = 0; i < FETCHED; i++, from += LINE) _mm_prefetch(from, _MM_HINT_T1);
            multiply_pairs<ROWS, VECTORS>(c, a, 2 * k, b, k * PAIR_ROW);
        }
        for (; k < turns.end; k++)
            multiply_pairs<ROWS, VECTORS>(c, a, 2 * k, b, k * PAIR_ROW);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < VECTORS; j++)
                vstore(out + i * PANEL + column + j * W, c[i][j]);
    }
}

template <int LINES>
static inline void multiply_rows(const Product& p, int rows, int row, const bf16* panel, float* out,
                                 Turns turns) {
    switch (rows) {
        case 1: return multiply_tile<1, LINES>(p, row, panel, out, turns);
        case 2: return multiply_tile<2, LINES>(p, row, panel, out, turns);
        case 3: return multiply_tile<3, LINES>(p, row, panel, out, turns);
        case 4: return multiply_tile<4, LINES>(p, row, panel, out, turns);
#if defined(__AVX2__)
        case 5: return multiply_tile<5, LINES>(p, row, panel, out, turns);
        case 6: return multiply_tile<6, LINES>(p, row, panel, out, turns);
#endif
    }
}

static inline long lines_of(long pairs) { return pairs * PAIR_ROW * (long)sizeof(bf16) / LINE; }

// All rows of one panel, in one tile or two; of panel `next` (null: none) the first stretch is
// fetched.
template <class Finish>
static inline void multiply_abreast(const Product& p, const bf16* panel, const bf16* next,
                                    Finish finish) {
    float out[2 * TILE_ROWS * PANEL];
    int first = p.rows > TILE_ROWS ? (p.rows + 1) / 2 : p.rows, rest = p.rows - first;
    for (long begin = 0; begin < p.pairs; begin += STRETCH) {
        long end = std::min(begin + STRETCH, p.pairs), later = end < p.pairs ? end : 0;
        const char* ahead = (const char*)(later ? panel + later * PAIR_ROW : next);
        long lines = ahead ? lines_of(std::min(STRETCH, p.pairs - later)) : 0, half = lines / 2;
        if (rest == 0) {
            multiply_rows<4>(p, first, 0, panel, out, {begin, end, ahead, lines});
            continue;
        }
        multiply_rows<2>(p, first, 0, panel, out, {begin, end, ahead, half});
        multiply_rows<2>(p, rest, first, panel, out + first * PANEL,
                         {begin, end, ahead + half * LINE, half});
    }
    for (int row = 0; row < p.rows; row++) finish(row, out + row * PANEL);
}

// All rows of one panel; `finish(row, outputs)` takes each row's 64 outputs. Tiles are of even
// height. Several fetch panel `next_index` (-1: none) while they compute, a share of it in each. A
// lone tile of one pass goes through memory in order, which most processors fetch by themselves.
template <class Finish>
static inline void multiply_panel(const Product& p, long panel_index, long next_index,
                                  Finish finish) {
    const bf16* panel = p.weight + panel_index * p.pairs * PAIR_ROW;
    const bf16* next = next_index < 0 ? nullptr : p.weight + next_index * p.pairs * PAIR_ROW;
    int tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS;
    if constexpr (TILES_ABREAST > 0)
        if (tiles <= TILES_ABREAST &&
            (p.pairs >= ABREAST_PAIRS || tile_vectors(p.rows) * W < PANEL))
            return multiply_abreast(p, panel, next, finish);
    long share = (lines_of(p.pairs) + tiles - 1) / std::max(1, tiles);
    share = next && tiles > 1 ? std::min(share, 2 * p.pairs) : 0;
    float out[TILE_ROWS * PANEL];
    for (int tile = 0, row = 0; tile < tiles; tile++) {
        int rows = (p.rows - row + (tiles - tile) - 1) / (tiles - tile);
        const char* from = (const char*)next + tile * share * LINE;
        multiply_rows<2>(p, rows, row, panel, out, {0, p.pairs, from, share});
        for (int i = 0; i < rows; i++) finish(row + i, out + i * PANEL);
        row += rows;
    }
}
