// One step's forward pass: all of it in one parallel region, threads meeting between the parts.
//
// Work is dealt out by counters, one for each part, so that a thread that the system took away
// holds the others up only by the panel in its hands. The hidden state is float from embedding to
// last norm.
#include <omp.h>
#include "gemm.h"
#include "layers.h"
#include "library.h"
#include "scratch.h"

namespace {

constexpr int SHARES = 6;       // pieces of a product for each thread: fewer would leave some idle

// One thread's view of the pass.
class Pass {
public:
    Pass(const ModelWeights& m, const StepBatch& b, const Scratch& s, int tasks, float* logits)
        : m(m), b(b), s(s), tasks(tasks), logits(logits) {
        thread = omp_get_thread_num();
        threads = omp_get_num_threads();
        begin = (long)b.tokens * thread / threads;
        end = (long)b.tokens * (thread + 1) / threads;
    }

    // The last norm and the head alone, for tokens of the step before.
    void run_logits() { finish_logits(); }

    void run() {
        for (int t = begin; t < end; t++) {
            float* hidden = s.hidden + t * (long)m.hidden_padded;
            if (b.embeddings && b.embeddings[t])
                begin_with(b.embeddings[t], hidden);
            else
                embed(b.token_ids[t], hidden);
        }
        if (few()) meet();
        for (int layer = 0; layer < m.layers; layer++) run_layer(layer, m.layer[layer]);
        if (!few()) meet();
        finish_logits();
    }

private:
    const ModelWeights& m;
    const StepBatch& b;
    const Scratch& s;
    int tasks;
    float* logits;
    int thread, threads, begin, end;
    int part = 0;

    void meet() {
#pragma omp barrier
    }
    bool few() const { return b.tokens <= FEW_TOKENS; }

    // The next piece of the current part: [from, to), or false when all are taken.
    bool next_piece(int total, int size, int& from, int& to) {
        from = __atomic_fetch_add(&s.counters[part].next, size, __ATOMIC_RELAXED);
        to = std::min(total, from + size);
        return from < total;
    }

    template <class Finish>
    void multiply(const Act* a, long stride, int rows, const bf16* weight, int inputs, int outputs,
                  Finish finish) {
        Product p{a, stride, weight, inputs / 2, rows};
        int panels = outputs / PANEL, from, to;
        int size = std::max(1, panels / (threads * SHARES));
        while (next_piece(panels, size, from, to))
            for (int panel = from; panel < to; panel++)
                multiply_panel(p, panel, panel + 1 < to, [&](int row, const float* outputs) {
                    finish(row, panel * PANEL, outputs);
                });
        part++;
    }

    void begin_with(const float* given, float* out) {
        memcpy(out, given, m.hidden * sizeof(float));
        std::fill(out + m.hidden, out + m.hidden_padded, 0.0f);
    }

    void embed(int token, float* out) {
        int width = m.hidden_padded;
        float scale = to_float(to_bf16(m.embedding_scale));
        if (m.embedding) {
            const bf16* row = m.embedding + (long)token * width;
            for (int i = 0; i < width; i++) out[i] = to_float(row[i]) * scale;
            return;
        }
        const bf16* row = m.head + (long)(token / PANEL) * PANEL * width + 2 * (token % PANEL);
        for (int pair = 0; pair < width / 2; pair++) {
            out[2 * pair] = to_float(row[pair * PAIR_ROW]) * scale;
            out[2 * pair + 1] = to_float(row[pair * PAIR_ROW + 1]) * scale;
        }
    }

    // Norms the hidden state, unrounded into `exact` as well unless that is null. Of few tokens each
    // thread norms all, into memory of its own.
    const Act* norm(const float* weight, float* exact = nullptr) {
        long width = m.hidden_padded;
        if (few() && !exact) {
            Act* own = s.own + thread * FEW_TOKENS * width;
            for (int t = 0; t < b.tokens; t++)
                norm_row(s.hidden + t * width, weight, own + t * width, nullptr, m);
            return own;
        }
        for (int t = begin; t < end; t++)
            norm_row(s.hidden + t * width, weight, s.x + t * width,
                     exact ? exact + t * width : nullptr, m);
        meet();
        return s.x;
    }

    void run_layer(int layer, const LayerWeights& w) {
        const Act* x = norm(w.attention_norm);
        query_key_value(layer, w, x);
        meet();
        attend(layer);
        meet();
        add_product(s.attended, m.heads * m.head_padded, w.attention_output,
                    w.attention_output_bias, w.attention_end_norm);
        if (w.router) return mix_experts(w);
        x = norm(w.mlp_norm);
        gate_up(w, x);
        meet();
        add_product(s.gated, m.intermediate_padded, w.down, w.down_bias, w.mlp_end_norm);
    }

    // hidden += product, or its norm; everybody may read it then.
    void add_product(const Act* a, int inputs, const bf16* weight, const float* bias,
                     const float* end_norm) {
        long width = m.hidden_padded;
        multiply(a, inputs, b.tokens, weight, inputs, m.hidden_padded,
                 [&](int row, int column, const float* outputs) {
                     float* sum = (end_norm ? s.added : s.hidden) + row * width + column;
                     for (int i = 0; i < PANEL; i += W) {
                         Vf v = vload(outputs + i);
                         if (bias) v = vadd(v, vload(bias + column + i));
                         vstore(sum + i, end_norm ? v : vadd(vload(sum + i), v));
                     }
                 });
        meet();
        if (!end_norm) return;
        for (int t = begin; t < end; t++)
            add_normed_row(s.hidden + t * width, s.added + t * width, end_norm, m);
        meet();
    }

    void gate_up(const LayerWeights& w, const Act* x) {
        multiply(x, m.hidden_padded, b.tokens, w.gate_up, m.hidden_padded,
                 2 * m.intermediate_padded, [&](int row, int column, const float* outputs) {
                     const float* bias = w.gate_up_bias ? w.gate_up_bias + column : nullptr;
                     Act* out = s.gated + (long)row * m.intermediate_padded + column / 2;
                     store_gated(outputs, bias, m.gelu, out);
                 });
    }

    // Router, choice, experts; an expert's weights are read once, for all tokens that go there.
    void mix_experts(const LayerWeights& w) {
        const Routing& r = s.routing;
        int from, to;
        norm(w.mlp_norm, r.exact);
        while (next_piece(m.experts_padded / EXPERT_GROUP, 1, from, to))
            score_experts(m, w.router, from * EXPERT_GROUP, b.tokens, r);
        part++;
        meet();
        for (int t = begin; t < end; t++) choose_experts(m, t, r);
        meet();
        if (thread == 0) group_by_expert(m, b.tokens, r);
        meet();
        expert_gate_up(w, r);
        meet();
        expert_down(w, r);
        meet();
    }

    void expert_gate_up(const LayerWeights& w, const Routing& r) {
        int width = m.expert_intermediate_padded, panels = 2 * width / PANEL, from, to;
        int pieces = *r.busy_count * panels;
        while (next_piece(pieces, std::max(1, pieces / (threads * SHARES)), from, to))
            for (int piece = from; piece < to; piece++) {
                int expert = r.busy[piece / panels], panel = piece % panels;
                int first = r.begins[expert], rows = r.begins[expert + 1] - first;
                const bf16* weight = w.experts_gate_up + 2L * expert * width * m.hidden_padded;
                Product p{s.x, m.hidden_padded, weight, m.hidden_padded / 2, rows, r.tokens + first};
                bool more = piece + 1 < to && panel + 1 < panels;
                multiply_panel(p, panel, more, [&](int row, const float* outputs) {
                    Act* out = s.gated + (long)(first + row) * width + panel * PANEL / 2;
                    store_gated(outputs, nullptr, m.gelu, out);
                });
            }
        part++;
    }

    // A thread has some columns of all experts, so that it adds them up in order.
    void expert_down(const LayerWeights& w, const Routing& r) {
        int width = m.expert_intermediate_padded, panels = m.hidden_padded / PANEL, from, to;
        while (next_piece(panels, std::max(1, panels / (threads * SHARES)), from, to))
            for (int i = 0; i < *r.busy_count; i++) {
                int expert = r.busy[i], first = r.begins[expert];
                const bf16* weight = w.experts_down + (long)expert * m.hidden_padded * width;
                Product p{s.gated + (long)first * width, width, weight, width / 2,
                          r.begins[expert + 1] - first};
                for (int panel = from; panel < to; panel++)
                    multiply_panel(p, panel, panel + 1 < to, [&](int row, const float* outputs) {
                        long token = r.tokens[first + row];
                        float* hidden = s.hidden + token * m.hidden_padded + panel * PANEL;
                        Vf share = vset(r.pair_shares[first + row]);
                        for (int j = 0; j < PANEL; j += W)
                            vstore(hidden + j, vfma(vload(outputs + j), share, vload(hidden + j)));
                    });
            }
        part++;
    }

    // Whole heads at a time: product, bias, norm, rotation, and the write to queries or cache.
    void query_key_value(int layer, const LayerWeights& w, const Act* x) {
        int columns = unit_columns(m), heads = columns / m.head_padded;
        int units = (all_heads(m) + heads - 1) / heads, from, to;
        float* unit = s.unit + (long)thread * b.tokens * columns;
        Product p{x, m.hidden_padded, w.query_key_value, m.hidden_padded / 2, b.tokens};
        while (next_piece(units, std::max(1, units / (threads * SHARES)), from, to))
            for (int u = from; u < to; u++) {
                for (int column = 0; column < columns; column += PANEL)
                    multiply_panel(p, ((long)u * columns + column) / PANEL, true,
                                   [&](int row, const float* outputs) {
                                       memcpy(unit + (long)row * columns + column, outputs,
                                              PANEL * sizeof(float));
                                   });
                for (int h = 0; h < heads && u * heads + h < all_heads(m); h++)
                    finish_head(layer, w, u * heads + h, unit + h * m.head_padded, columns);
            }
        part++;
    }

    void finish_head(int layer, const LayerWeights& w, int head, float* values, long stride) {
        int size = m.head_padded, turned = m.heads + m.kv_heads;
        const float* bias = w.query_key_value_bias;
        if (bias)
            for (int t = 0; t < b.tokens; t++)
                for (int i = 0; i < size; i += W)
                    vstore(values + t * stride + i, vadd(vload(values + t * stride + i),
                                                         vload(bias + (long)head * size + i)));
        if (head >= turned) return write_values(layer, head - turned, values, stride);
        const float* weight = head < m.heads ? w.query_norm : w.key_norm;
        for (int t = 0; t < b.tokens; t++) {
            float* x = values + t * stride;
            norm_and_rotate(x, weight, w.rotation + (long)position(t) * size, m);
            if (head >= m.heads) {
                write_key(layer, head - m.heads, t, x);
                continue;
            }
            Act* query = s.queries + ((long)t * m.heads + head) * size;
            for (int i = 0; i < size; i += W) store_act(query + i, vload(x + i));
        }
    }

    int position(int token) const {
        int sequence = s.sequence_of[token];
        return b.begins[sequence] + token - s.first_tokens[sequence];
    }

    bf16* block_of(int layer, int head, int token, int position) const {
        const int32_t* table = b.block_tables + (long)b.rows[s.sequence_of[token]] * b.table_stride;
        long block = (long)layer * m.blocks + table[position / BLOCK_TOKENS];
        return m.kv + block * block_stride(m) + head * head_block(m);
    }

    void write_key(int layer, int head, int token, const float* x) {
        int at = position(token);
        alignas(LINE) bf16 rounded[HEAD_PADDED_MAX];
        for (int i = 0; i < m.head_padded; i += W) store_bf16(rounded + i, vload(x + i));
        uint32_t* keys = (uint32_t*)block_of(layer, head, token, at) + at % BLOCK_TOKENS;
        for (int pair = 0; pair < m.head_padded / 2; pair++)
            memcpy(keys + pair * BLOCK_TOKENS, rounded + 2 * pair, 4);
    }

    // Values lie as pairs of tokens. The first of a pair clears the second's place, so that what a
    // sequence has not written yet is zero whoever had the block before.
    void write_values(int layer, int head, const float* values, long stride) {
        int size = m.head_padded;
        alignas(LINE) bf16 rounded[HEAD_PADDED_MAX];
        for (int t = 0; t < b.tokens; t++) {
            int at = position(t), place = at % BLOCK_TOKENS;
            bf16* pairs = block_of(layer, head, t, at) + (BLOCK_TOKENS + place / 2 * 2) * size;
            for (int i = 0; i < size; i += W)
                store_bf16(rounded + i, vload(values + t * stride + i));
            if (place % 2)
                for (int i = 0; i < size; i++) pairs[2 * i + 1] = rounded[i];
            else
                for (int i = 0; i < size; i++) {
                    uint32_t pair = rounded[i];
                    memcpy(pairs + 2 * i, &pair, 4);
                }
        }
    }

    void attend(int layer) {
        int rows = attention_rows_max(m), from, to;
        float* softmax = s.softmax + (long)thread * 2 * rows;
        AttentionState state{s.sums + (long)thread * rows * m.head_padded, softmax, softmax + rows};
        while (next_piece(tasks, 1, from, to)) {
            const AttentionTask& task = s.tasks[from];
            run_attention(m, b, task, layer, s.first_tokens[task.sequence], s.queries, s.attended,
                          state);
        }
        part++;
    }

    void finish_logits() {
        long width = m.hidden_padded;
        if (b.logit_rows == 0) return;
        for (int r = (long)b.logit_rows * thread / threads;
             r < (long)b.logit_rows * (thread + 1) / threads; r++)
            norm_row(s.hidden + b.logit_tokens[r] * width, m.norm, s.x + r * width, nullptr, m);
        meet();
        multiply(s.x, width, b.logit_rows, m.head, width, m.vocab_padded,
                 [&](int row, int column, const float* outputs) {
                     float* out = logits + (long)row * m.vocab_padded + column;
                     memcpy(out, outputs, PANEL * sizeof(float));
                     if (m.logit_softcap == 0.f) return;
                     for (int i = 0; i < PANEL; i += W)
                         vstore(out + i, softcapped(vload(out + i), m.logit_softcap));
                 });
    }
};

// What would read or write beyond an array; 0 if nothing does.
int find_fault(const ModelWeights& m, const StepBatch& b) {
    long tokens = 0;
    for (int s = 0; s < b.sequences; s++) {
        if (b.counts[s] < 1 || b.begins[s] < 0 || b.begins[s] > m.positions - b.counts[s]) return 1;
        int blocks = (b.begins[s] + b.counts[s] + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
        if (b.rows[s] < 0 || blocks > b.table_stride) return 2;
        const int32_t* table = b.block_tables + (long)b.rows[s] * b.table_stride;
        for (int i = 0; i < blocks; i++)
            if (table[i] < 0 || table[i] >= m.blocks) return 2;
        tokens += b.counts[s];
    }
    if (tokens != b.tokens) return 3;
    for (int t = 0; t < b.tokens; t++)
        if (b.token_ids[t] < 0 || b.token_ids[t] >= m.vocab) return 4;
    for (int r = 0; r < b.logit_rows; r++)
        if (b.logit_tokens[r] < 0 || b.logit_tokens[r] >= b.tokens) return 5;
    return 0;
}

}  // namespace

// Bytes of scratch memory that a step of so many tokens and sequences needs.
TRIOLET_API int64_t triolet_scratch_bytes(const ModelWeights* m, int64_t tokens, int64_t sequences,
                                          int32_t threads) {
    return (int64_t)lay_out(*m, nullptr, tokens, sequences, threads).bytes + LINE;
}

// Logits of other tokens of the step that was computed last with this scratch memory.
TRIOLET_API int32_t triolet_logits(const ModelWeights* m, const StepBatch* b, void* scratch,
                                   float* logits, int32_t threads) {
    for (int r = 0; r < b->logit_rows; r++)
        if (b->logit_tokens[r] < 0 || b->logit_tokens[r] >= b->tokens) return 5;
    char* base = (char*)(((uintptr_t)scratch + LINE - 1) / LINE * LINE);
    Scratch s = lay_out(*m, base, b->tokens, b->sequences, threads);
    s.counters[0].next = 0;
#pragma omp parallel num_threads(threads)
    Pass(*m, *b, s, 0, logits).run_logits();
    return 0;
}

// Computes a step's tokens into the cache, and the wanted logits, [logit_rows][vocab_padded].
// Returns 0, or what is wrong with the batch, and then nothing was computed.
TRIOLET_API int32_t triolet_forward(const ModelWeights* m, const StepBatch* b, void* scratch,
                                    float* logits, int32_t threads) {
    if (int fault = find_fault(*m, *b)) return fault;
    if (b->tokens == 0) return 0;
    char* base = (char*)(((uintptr_t)scratch + LINE - 1) / LINE * LINE);
    Scratch s = lay_out(*m, base, b->tokens, b->sequences, threads);
    for (int i = 0; i < m->layers * PARTS + 1; i++) s.counters[i].next = 0;
    int token = 0;
    for (int sequence = 0; sequence < b->sequences; sequence++) {
        s.first_tokens[sequence] = token;
        for (int i = 0; i < b->counts[sequence]; i++) s.sequence_of[token++] = sequence;
    }
    int tasks = plan_attention(*m, *b, threads, s.tasks);
#pragma omp parallel num_threads(threads)
    Pass(*m, *b, s, tasks, logits).run();
    return 0;
}
