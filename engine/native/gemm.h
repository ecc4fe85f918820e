// Products of activations with packed weights: rows of any number, panels of 64 outputs.
//
// Bitwise rule: an output is the sum over its inputs in ascending order, in one accumulator,
// whatever the number of rows, the tile its row falls into and the thread. So tiles may be of any
// height, and work may go to whichever thread is free.
#pragma once
#include <algorithm>
#include "model.h"

// The tile of accumulators that the registers hold: rows, and vectors of columns.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2;
#else
constexpr int TILE_ROWS = 4, TILE_VECTORS = 2;
#endif

constexpr long PAIR_ROW = 2 * PANEL;      // elements of one pair of inputs in a panel

struct Product {
    const Act* a;
    long a_stride;
    const bf16* weight;
    long pairs;  // inputs / 2
    int rows;
    const int32_t* row_of = nullptr;  // where each row is in `a`; null: one after the other
};

// What a tile's loop fetches for later: `lines` cache lines from `from` on, two each turn, so that
// two tiles fetch a whole panel.
struct Fetch {
    const char* from;
    long lines;
};

// Not merged into its callers: the compiler would run out of registers.
template <int ROWS>
static __attribute__((noinline)) void multiply_tile(const Product& p, int row, const bf16* panel,
                                                    float* out, Fetch fetch) {
    const Act* a[ROWS];
    for (int i = 0; i < ROWS; i++)
        a[i] = p.a + (p.row_of ? p.row_of[row + i] : row + i) * p.a_stride;
    for (int column = 0; column < PANEL; column += TILE_VECTORS * W) {
        Vf c[ROWS][TILE_VECTORS];
        const bf16* b[TILE_VECTORS];
        for (int j = 0; j < TILE_VECTORS; j++) b[j] = panel + 2 * (column + j * W);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < TILE_VECTORS; j++) c[i][j] = vset(0.f);
        long k = 0, fetching = column == 0 ? std::min((fetch.lines + 1) / 2, p.pairs) : 0;
        for (; k < fetching; k++) {
            _mm_prefetch(fetch.from + k * 128, _MM_HINT_T1);
            _mm_prefetch(fetch.from + k * 128 + 64, _MM_HINT_T1);
            multiply_pairs<ROWS, TILE_VECTORS>(c, a, 2 * k, b, k * PAIR_ROW);
        }
        for (; k < p.pairs; k++) multiply_pairs<ROWS, TILE_VECTORS>(c, a, 2 * k, b, k * PAIR_ROW);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < TILE_VECTORS; j++)
                vstore(out + i * PANEL + column + j * W, c[i][j]);
    }
}

static inline void multiply_rows(const Product& p, int rows, int row, const bf16* panel, float* out,
                                 Fetch fetch) {
    switch (rows) {
        case 1: return multiply_tile<1>(p, row, panel, out, fetch);
        case 2: return multiply_tile<2>(p, row, panel, out, fetch);
        case 3: return multiply_tile<3>(p, row, panel, out, fetch);
        case 4: return multiply_tile<4>(p, row, panel, out, fetch);
#if defined(__AVX2__)
        case 5: return multiply_tile<5>(p, row, panel, out, fetch);
        case 6: return multiply_tile<6>(p, row, panel, out, fetch);
#endif
    }
}

// All rows of one panel; `finish(row, outputs)` takes each row's 64 outputs. Tiles are of even
// height. While they compute, the next panel is fetched, a share of it in each tile. A lone tile
// goes through memory in order, and the processor fetches that sooner than it could be told to.
template <class Finish>
static inline void multiply_panel(const Product& p, long panel_index, bool more, Finish finish) {
    const bf16* panel = p.weight + panel_index * p.pairs * PAIR_ROW;
    const char* next = (const char*)(panel + p.pairs * PAIR_ROW);
    int tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS;
    long lines = p.pairs * PAIR_ROW * 2 / 64;
    long share = more && tiles > 1 ? std::min((lines + tiles - 1) / tiles, 2 * p.pairs) : 0;
    float out[TILE_ROWS * PANEL];
    for (int tile = 0, row = 0; tile < tiles; tile++) {
        int rows = (p.rows - row + (tiles - tile) - 1) / (tiles - tile);
        multiply_rows(p, rows, row, panel, out, {next + tile * share * 64, share});
        for (int i = 0; i < rows; i++) finish(row + i, out + i * PANEL);
        row += rows;
    }
}
