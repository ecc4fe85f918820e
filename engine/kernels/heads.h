// Heads of queries, keys and values after their product: bias, norm, rotation, and where they go.
#pragma once
#include "layers.h"
#include "scratch.h"

// Some of the rows that a unit of heads is computed for; `tokens` null: all, one after the other.
struct UnitRows {
    const int32_t* tokens;
    int first, count;

    int token(int row) const { return tokens ? tokens[first + row] : first + row; }
};

// Of one layer of one step.
struct HeadWriter {
    const ModelWeights& m;
    const StepBatch& b;
    const Scratch& s;
    int layer;
    const LayerWeights& w;

    // One head of these rows, in `values`, rows `stride` apart, which it overwrites.
    void finish_head(int head, const UnitRows& rows, float* values, long stride) const {
        int size = m.head_padded, turned = m.heads + m.kv_heads;
        if (w.query_key_value_bias)
            add_bias(w.query_key_value_bias + (long)head * size, rows.count, values, stride);
        if (head >= turned) return write_values(head - turned, rows, values, stride);
        const float* norm = head < m.heads ? w.query_norm : w.key_norm;
        for (int r = 0; r < rows.count; r++) {
            int token = rows.token(r), at = position(token);
            float* x = values + r * stride;
            norm_and_rotate(x, norm, w.rotation + (long)at * size, m);
            if (head >= m.heads) {
                write_key(head - m.heads, token, at, x);
                continue;
            }
            Act* query = s.queries + ((long)token * m.heads + head) * size;
            for (int i = 0; i < size; i += W) store_act(query + i, vload(x + i));
        }
    }

private:
    void add_bias(const float* bias, int count, float* values, long stride) const {
        for (int r = 0; r < count; r++, values += stride)
            for (int i = 0; i < m.head_padded; i += W)
                vstore(values + i, vadd(vload(values + i), vload(bias + i)));
    }

    int position(int token) const {
        int sequence = s.sequence_of[token];
        return b.begins[sequence] + token - s.first_tokens[sequence];
    }

    bf16* block_of(int head, int token, int position) const {
        const int32_t* table = b.block_tables + (long)b.rows[s.sequence_of[token]] * b.table_stride;
        long block = (long)layer * m.blocks + table[position / BLOCK_TOKENS];
        return m.kv + block * block_stride(m) + head * head_block(m);
    }

    void write_key(int head, int token, int at, const float* x) const {
        alignas(LINE) bf16 rounded[HEAD_PADDED_MAX];
        for (int i = 0; i < m.head_padded; i += W) store_bf16(rounded + i, vload(x + i));
        uint32_t* keys = (uint32_t*)block_of(head, token, at) + at % BLOCK_TOKENS;
        for (int pair = 0; pair < m.head_padded / 2; pair++)
            memcpy(keys + pair * BLOCK_TOKENS, rounded + 2 * pair, 4);
    }

    // Values lie as pairs of tokens. The first of a pair clears the second's place, so that what a
    // sequence has not written yet is zero, not the values of the block's last owner.
    void write_values(int head, const UnitRows& rows, const float* values, long stride) const {
        int size = m.head_padded;
        alignas(LINE) bf16 rounded[HEAD_PADDED_MAX];
        for (int r = 0; r < rows.count; r++, values += stride) {
            int token = rows.token(r), at = position(token), place = at % BLOCK_TOKENS;
            bf16* pairs = block_of(head, token, at) + (BLOCK_TOKENS + place / 2 * 2) * size;
            for (int i = 0; i < size; i += W) store_bf16(rounded + i, vload(values + i));
            for (int i = 0; i < size; i++) {
                uint32_t pair = rounded[i];
                if (place % 2) {
                    memcpy(&pair, pairs + 2 * i, 4);
                    pair = (pair & 0xffff) | (uint32_t)rounded[i] << 16;
                }
                memcpy(pairs + 2 * i, &pair, 4);
            }
        }
    }
};
