// Attention by the running softmax, 64 tokens a round.
//
// Bitwise rule: rounds begin at multiples of 64 positions in every step; in a round every row does
// the same operations in the same order, and tokens that it does not see have weight zero. So a row
// has the same bits in any tile, step, chunk or thread.
//
// Walks. A decode row reads all keys and values of its sequence once, so memory is the limit: all
// kv heads of 64 tokens, then of the next 64, in the order in which they lie in memory, and the
// blocks that come next are fetched meanwhile. A prompt's chunk reads them once for each tile of
// queries, so arithmetic is the limit: one head after the other, whose 64 tokens stay in the cache.
#include "attention.h"
#include <algorithm>
#include <cmath>

namespace {

constexpr int ROUND_BLOCKS = CHUNK / BLOCK_TOKENS;
#if defined(__AVX512F__)
constexpr int SCORE_VECTORS = 4;
#else
constexpr int SCORE_VECTORS = 2;
#endif

// Takes the place of blocks beyond the sequence's end; never written.
alignas(64) const bf16 no_block[2 * BLOCK_TOKENS * HEAD_PADDED_MAX] = {};

// The blocks of one head's round, and those to fetch for the next (null: none).
struct Round {
    const bf16* keys[ROUND_BLOCKS];
    const bf16* values[ROUND_BLOCKS];
    long next_keys[ROUND_BLOCKS];  // distance in bytes from the blocks above; 0: none
    long next_values[ROUND_BLOCKS];
    int tokens;  // of the round that any row sees, from its beginning
};

// The query rows of a task.
struct Queries {
    const Act* row[TILE_QUERIES];  // of the task's first head
    long offset;                   // from there to the head at hand
    int begin[TILE_QUERIES], end[TILE_QUERIES];  // positions that the row sees: [begin, end)
    int count;
};

// Functions that the compiler must not merge into one: it would run out of registers, and load
// each vector of keys and values again for every row.
#define APART __attribute__((noinline))

template <int ROWS>
APART void score_rows(const Act* const* q, long offset, const Round& round, int pairs, float* out,
                      bool fetch) {
    for (int column = 0; column < CHUNK; column += SCORE_VECTORS * W) {
        Vf c[ROWS][SCORE_VECTORS];
        const bf16* keys[SCORE_VECTORS];
        long ahead[SCORE_VECTORS];
        for (int j = 0; j < SCORE_VECTORS; j++) {
            int token = column + j * W;
            keys[j] = round.keys[token / BLOCK_TOKENS] + 2 * (token % BLOCK_TOKENS);
            ahead[j] = fetch ? round.next_keys[token / BLOCK_TOKENS] : 0;
            for (int i = 0; i < ROWS; i++) c[i][j] = vset(0.f);
        }
        for (int d = 0; d < pairs; d++) {
            if (fetch)
                for (int j = 0; j < SCORE_VECTORS; j++)
                    _mm_prefetch((const char*)(keys[j] + d * 32) + ahead[j], _MM_HINT_T1);
            multiply_pairs<ROWS, SCORE_VECTORS>(c, q, offset + 2 * d, keys, d * 2 * BLOCK_TOKENS);
        }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < SCORE_VECTORS; j++)
                vstore(out + i * CHUNK + column + j * W, c[i][j]);
    }
}

// sums[row] += weights[row] × values, for VECTORS vectors of channels from `channel` on.
template <int ROWS, int VECTORS>
APART void add_channels(float* sums, int size, int channel, const Act* const* p,
                        const Round& round, bool fetch) {
    constexpr int BLOCK_PAIRS = BLOCK_TOKENS / 2;
    Vf c[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) c[i][j] = vload(sums + i * size + channel + j * W);
    for (int pair = 0; 2 * pair < round.tokens; pair++) {
        int block = pair / BLOCK_PAIRS;
        const bf16* first = round.values[block] + pair % BLOCK_PAIRS * 2L * size + 2 * channel;
        const bf16* values[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            values[j] = first + 2 * j * W;
            if (fetch)
                _mm_prefetch((const char*)values[j] + round.next_values[block], _MM_HINT_T1);
        }
        multiply_pairs<ROWS, VECTORS>(c, p, 2 * pair, values, 0);
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) vstore(sums + i * size + channel + j * W, c[i][j]);
}

template <int ROWS>
void add_rows(float* sums, int size, const Act* const* p, const Round& round, bool fetch) {
    constexpr int WIDE = 4;
    int channel = 0;
    for (; channel + WIDE * W <= size; channel += WIDE * W)
        add_channels<ROWS, WIDE>(sums, size, channel, p, round, fetch);
    if (channel < size) add_channels<ROWS, WIDE / 2>(sums, size, channel, p, round, fetch);
}

// One row's round of the running softmax: scores become weights, in `p`; sums are rescaled. The row
// sees the tokens whose bit is set in `seen`.
APART void weigh_row(const float* scores, uint64_t seen, float scale, Act* p, float* sums, int size,
                     float& largest, float& weight) {
    constexpr int VECTORS = CHUNK / W;
    Vf s[VECTORS], top = vset(-INFINITY), total = vset(0.f);
    for (int i = 0; i < VECTORS; i++) {
        s[i] = select_lanes(seen >> (i * W), vload(scores + i * W), vset(-INFINITY));
        top = vmax(top, s[i]);
    }
    // In powers of two; the scale is positive.
    float next = std::max(largest, vlargest(top) * scale);
    for (int i = 0; i < VECTORS; i++) {
        Vf e = vexp2(vsub(vmul(s[i], vset(scale)), vset(next)));
        e = select_lanes(seen >> (i * W), e, vset(0.f));
        store_act(p + i * W, e);
        // The rounded weights are summed: what rounding adds to a value it adds to the divisor.
        total = vadd(total, as_act(e));
    }
    if (next != largest) {
        float lane[W];
        vstore(lane, vexp2(vset(largest - next)));  // of -inf at first, when all sums are zero
        weight *= lane[0];
        for (int i = 0; i < size; i += W) vstore(sums + i, vmul(vload(sums + i), vset(lane[0])));
        largest = next;
    }
    weight += vsum(total);
}

// The bits [begin, end) of a round's tokens.
uint64_t bits_between(int begin, int end) {
    return ~0ull >> (CHUNK - (end - begin)) << begin;
}

// Rows [0, count) in groups of the most that registers hold.
template <class Four, class Two, class One>
inline void in_groups(int count, Four four, Two two, One one) {
    int row = 0;
    for (; row + 4 <= count; row += 4) four(row);
    if (count - row >= 2) {
        two(row);
        row += 2;
    }
    if (count > row) one(row);
}

void run_round(const ModelWeights& m, const Queries& q, const Round& round, int position,
               float scale, const AttentionState& state) {
    alignas(64) float s[TILE_QUERIES * CHUNK];
    alignas(64) Act p[TILE_QUERIES * CHUNK];
    const Act* weights[TILE_QUERIES];
    int size = m.head_padded;
    in_groups(
        q.count,
        [&](int r) { score_rows<4>(q.row + r, q.offset, round, size / 2, s + r * CHUNK, r == 0); },
        [&](int r) { score_rows<2>(q.row + r, q.offset, round, size / 2, s + r * CHUNK, r == 0); },
        [&](int r) { score_rows<1>(q.row + r, q.offset, round, size / 2, s + r * CHUNK, r == 0); });
    for (int r = 0; r < q.count; r++) {
        weights[r] = p + r * CHUNK;
        int begin = std::max(0, q.begin[r] - position), end = std::min(CHUNK, q.end[r] - position);
        if (begin >= end) {
            memset(p + r * CHUNK, 0, sizeof(Act) * CHUNK);  // sees nothing of this round
            continue;
        }
        weigh_row(s + r * CHUNK, bits_between(begin, end), scale, p + r * CHUNK,
                  state.sums + r * size, size, state.largest[r], state.weight[r]);
    }
    in_groups(
        q.count,
        [&](int r) { add_rows<4>(state.sums + r * size, size, weights + r, round, r == 0); },
        [&](int r) { add_rows<2>(state.sums + r * size, size, weights + r, round, r == 0); },
        [&](int r) { add_rows<1>(state.sums + r * size, size, weights + r, round, r == 0); });
}

// Where a task is in its walk: a kv head and the first position of a round.
struct Place {
    int head, position;
};

Round round_at(const ModelWeights& m, const bf16* kv, const int32_t* table, Place place, Place next,
               int end) {
    Round round;
    long stride = block_stride(m), values = BLOCK_TOKENS * m.head_padded;
    round.tokens = std::min(CHUNK, end - place.position);
    for (int j = 0; j < ROUND_BLOCKS; j++) {
        int position = place.position + j * BLOCK_TOKENS, then = next.position + j * BLOCK_TOKENS;
        const bf16* block = no_block;
        if (position < end)
            block = kv + table[position / BLOCK_TOKENS] * stride + place.head * head_block(m);
        round.keys[j] = block;
        round.values[j] = position < end ? block + values : no_block;
        const bf16* later = block;
        if (then < end)
            later = kv + table[then / BLOCK_TOKENS] * stride + next.head * head_block(m);
        round.next_keys[j] = (const char*)later - (const char*)block;
        round.next_values[j] = position < end ? round.next_keys[j] : 0;
    }
    return round;
}

}  // namespace

int attention_rows_max(const ModelWeights& m) {
    return std::max(TILE_QUERIES, m.heads / m.kv_heads) * m.kv_heads;
}

long attention_tasks_max(const ModelWeights& m, long tokens, long sequences) {
    return tokens * m.kv_heads + sequences * m.kv_heads;
}

int plan_attention(const ModelWeights& m, const StepBatch& batch, const Rows& rows, int threads,
                   AttentionTask* tasks) {
    int group = m.heads / m.kv_heads, count = 0, row = 0, first = 0;
    int tile = std::max(1, TILE_QUERIES / group);
    for (int s = 0; s < batch.sequences; first += batch.counts[s++])
        while (row < rows.count && rows.token(row) < first + batch.counts[s]) {
            // Tokens that follow each other.
            int from = rows.token(row++) - first, to = from + 1;
            for (; row < rows.count && to < batch.counts[s] && rows.token(row) == first + to; row++)
                to++;
            bool decode = (to - from) * group <= TILE_QUERIES / 2;
            // Heads of a decode row together, unless that would leave threads without work.
            int heads = !decode ? 1
                        : batch.sequences >= 2 * threads ? m.kv_heads
                                                         : std::max(1, m.kv_heads / threads);
            for (int head = 0; head < m.kv_heads; head += heads)
                for (int token = from; token < to; token += tile)
                    tasks[count++] = {s, head, std::min(m.kv_heads, head + heads), token,
                                      std::min(to, token + tile)};
        }
    return count;
}

void run_attention(const ModelWeights& m, const StepBatch& batch, const AttentionTask& task,
                   int layer, int first_token, const Act* queries, Act* out, AttentionState state) {
    int group = m.heads / m.kv_heads, size = m.head_padded;
    long row_stride = (long)m.heads * size;
    const bf16* kv = m.kv + (long)layer * m.blocks * block_stride(m);
    long table_row = batch.rows[task.sequence];
    const int32_t* table = batch.block_tables + table_row * batch.table_stride;
    int window = (int)m.layer[layer].window;
    float scale = m.attention_scale * LOG2E;
    int first = batch.begins[task.sequence] + task.token;
    int end = batch.begins[task.sequence] + task.token_end;  // of what the last row sees
    int begin = window && first + 1 > window ? first + 1 - window : 0;
    int tokens = task.token_end - task.token;
    // A group of more heads than a tile holds is done in several passes, a tile each.
    for (int pass = 0; pass < group; pass += TILE_QUERIES) {
        int group_heads = std::min(group - pass, TILE_QUERIES), rows = tokens * group_heads;
        for (int head = task.head; head < task.head_end; head++)
            for (int r = 0, at = (head - task.head) * TILE_QUERIES; r < rows; r++) {
                state.largest[at + r] = -INFINITY;
                state.weight[at + r] = 0.f;
                memset(state.sums + (long)(at + r) * size, 0, sizeof(float) * size);
            }
        auto query_offset = [&](int head, int r) {
            long token = first_token + task.token + r / group_heads;
            return token * row_stride + (long)(head * group + pass + r % group_heads) * size;
        };
        Queries q;
        q.count = rows;
        for (int r = 0; r < rows; r++) {
            q.row[r] = queries + query_offset(task.head, r);
            q.end[r] = first + r / group_heads + 1;
            q.begin[r] = window && q.end[r] > window ? q.end[r] - window : 0;
        }
        for (int position = begin / CHUNK * CHUNK; position < end; position += CHUNK)
            for (int head = task.head; head < task.head_end; head++) {
                q.offset = (long)(head - task.head) * group * size;
                Place next = head + 1 < task.head_end ? Place{head + 1, position}
                                                      : Place{task.head, position + CHUNK};
                Round round = round_at(m, kv, table, {head, position}, next, end);
                int at = (head - task.head) * TILE_QUERIES;
                run_round(m, q, round, position, scale,
                          {state.sums + (long)at * size, state.largest + at, state.weight + at});
            }
        for (int head = task.head; head < task.head_end; head++)
            for (int r = 0, at = (head - task.head) * TILE_QUERIES; r < rows; r++) {
                Vf inverse = vset(1.f / state.weight[at + r]);
                const float* sums = state.sums + (long)(at + r) * size;
                Act* target = out + query_offset(head, r);
                for (int i = 0; i < size; i += W)
                    store_act(target + i, vmul(vload(sums + i), inverse));
            }
    }
}
