// One step's forward pass: all of it in one parallel region, threads meeting between the parts.
//
// Work is dealt out by counters, one for each part, so that a thread that the system took away
// holds the others up only by the panel in its hands. The hidden state is float from embedding to
// last norm.
#include <omp.h>
#include "gemm.h"
#include "heads.h"
#include "layers.h"
#include "library.h"

namespace {

constexpr int SHARES = 6;       // pieces of a product for each thread: fewer would leave some idle

// One thread's view of the pass.
class Pass {
public:
    Pass(const ModelWeights& m, const StepBatch& b, const Scratch& s, float* logits)
        : m(m), b(b), s(s), logits(logits) {
        thread = omp_get_thread_num();
        threads = omp_get_num_threads();
    }

    // `last`: the rows of the last layer, after its keys and values.
    void run(const Rows& all, const Rows& last) {
        take_rows(all);
        for (int t = begin; t < end; t++) {
            float* hidden = s.hidden + t * (long)m.hidden_padded;
            if (b.embeddings && b.embeddings[t])
                begin_with(b.embeddings[t], hidden);
            else
                embed(b.token_ids[t], hidden);
        }
        if (few()) meet();
        for (int layer = 0; layer < m.layers; layer++)
            run_layer(layer, m.layer[layer], layer + 1 < m.layers ? all : last);
        finish_logits();
    }

    // The last norm and the head: the end of a pass, or alone for tokens of the step before.
    void finish_logits() {
        long width = m.hidden_padded, stride = m.vocab_padded;
        if (b.logit_rows == 0) return;
        for (int r = (long)b.logit_rows * thread / threads;
             r < (long)b.logit_rows * (thread + 1) / threads; r++)
            norm_row(s.hidden + b.logit_tokens[r] * width, m.norm, s.x + r * width, nullptr, m);
        meet();
        Product p{s.x, width, m.head, width / 2, b.logit_rows};
        multiply(p, m.vocab_padded, [&](int row, int column, const float* outputs) {
            float* out = logits + row * stride + column;
            // Where a tile's outputs go soon, maybe in the next panel: rows are so far apart that a
            // step's logits are in no cache.
            if (row + TILE_ROWS < b.logit_rows)
                fetch_to_write(out + TILE_ROWS * stride, PANEL * sizeof(float));
            else if (column + PANEL < m.vocab_padded)
                fetch_to_write(out + std::min(0, TILE_ROWS - b.logit_rows) * stride + PANEL,
                               PANEL * sizeof(float));
            memcpy(out, outputs, PANEL * sizeof(float));
            if (m.logit_softcap == 0.f) return;
            for (int i = 0; i < PANEL; i += W)
                vstore(out + i, softcapped(vload(out + i), m.logit_softcap));
        });
    }

private:
    const ModelWeights& m;
    const StepBatch& b;
    const Scratch& s;
    float* logits;
    int thread, threads;
    Rows rows;       // that are computed now
    int begin, end;  // this thread's share of them, where each does its own
    int part = 0;

    void take_rows(const Rows& now) {
        rows = now;
        begin = (long)rows.count * thread / threads;
        end = (long)rows.count * (thread + 1) / threads;
    }

    void meet() {
#pragma omp barrier
    }
    bool few() const { return rows.count <= FEW_TOKENS; }

    // The next piece of the current part: [from, to), or false when all are taken.
    bool next_piece(int total, int size, int& from, int& to) {
        from = __atomic_fetch_add(&s.counters[part].next, size, __ATOMIC_RELAXED);
        to = std::min(total, from + size);
        return from < total;
    }

    // This thread's items of the current part, each with the one that comes next (-1: none). A
    // piece is taken before the one before is computed, so that its weights can be fetched.
    template <class Work>
    void for_pieces(int items, Work work) {
        int size = std::max(1, items / (threads * SHARES)), from, to, next_from, next_to;
        for (bool more = next_piece(items, size, from, to); more; from = next_from, to = next_to) {
            more = next_piece(items, size, next_from, next_to);
            for (int item = from; item < to; item++)
                work(item, item + 1 < to ? item + 1 : more ? next_from : -1);
        }
        part++;
    }

    template <class Finish>
    void multiply(const Product& p, int outputs, Finish finish) {
        for_pieces(outputs / PANEL, [&](int panel, int next) {
            multiply_panel(p, panel, next, [&](int row, const float* outputs) {
                finish(row, panel * PANEL, outputs);
            });
        });
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

    // Norms the rows' hidden states, unrounded into `exact` as well unless that is null. Of few each
    // thread norms all, into memory of its own.
    const Act* norm(const float* weight, float* exact = nullptr) {
        long width = m.hidden_padded;
        if (few() && !exact) {
            Act* own = s.own + thread * FEW_TOKENS * width;
            for (int r = 0; r < rows.count; r++)
                norm_row(s.hidden + rows.token(r) * width, weight, own + r * width, nullptr, m);
            return own;
        }
        for (int r = begin; r < end; r++)
            norm_row(s.hidden + rows.token(r) * width, weight, s.x + r * width,
                     exact ? exact + r * width : nullptr, m);
        meet();
        return s.x;
    }

    // Keys and values of all tokens, and the rest for `rest`.
    void run_layer(int layer, const LayerWeights& w, const Rows& rest) {
        const Act* x = norm(w.attention_norm);
        take_rows(rest);
        query_key_value(layer, w, x);
        meet();
        attend(layer);
        meet();
        long width = (long)m.heads * m.head_padded;
        add_product({s.attended, width, w.attention_output, width / 2, rows.count, rows.tokens},
                    w.attention_output_bias, w.attention_end_norm);
        if (w.router) return mix_experts(w);
        x = norm(w.mlp_norm);
        gate_up(w, x);
        meet();
        width = m.intermediate_padded;
        add_product({s.gated, width, w.down, width / 2, rows.count}, w.down_bias, w.mlp_end_norm);
    }

    // hidden += product, or its norm; all threads may read it then.
    void add_product(const Product& p, const float* bias, const float* end_norm) {
        long width = m.hidden_padded;
        multiply(p, m.hidden_padded, [&](int row, int column, const float* outputs) {
            float* sum = (end_norm ? s.added : s.hidden) + rows.token(row) * width + column;
            for (int i = 0; i < PANEL; i += W) {
                Vf v = vload(outputs + i);
                if (bias) v = vadd(v, vload(bias + column + i));
                vstore(sum + i, end_norm ? v : vadd(vload(sum + i), v));
            }
        });
        meet();
        if (!end_norm) return;
        for (int r = begin; r < end; r++) {
            long at = rows.token(r) * width;
            add_normed_row(s.hidden + at, s.added + at, end_norm, m);
        }
        meet();
    }

    void gate_up(const LayerWeights& w, const Act* x) {
        Product p{x, m.hidden_padded, w.gate_up, m.hidden_padded / 2, rows.count};
        multiply(p, 2 * m.intermediate_padded, [&](int row, int column, const float* outputs) {
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
            score_experts(m, w.router, from * EXPERT_GROUP, rows.count, r);
        part++;
        meet();
        for (int row = begin; row < end; row++) choose_experts(m, row, r);
        meet();
        if (thread == 0) group_by_expert(m, rows.count, r);
        meet();
        expert_gate_up(w, r);
        meet();
        expert_down(w, r);
        meet();
    }

    void expert_gate_up(const LayerWeights& w, const Routing& r) {
        int width = m.expert_intermediate_padded, panels = 2 * width / PANEL;
        // Panels of all experts lie one after the other.
        auto place = [&](int piece) {
            return (long)r.busy[piece / panels] * panels + piece % panels;
        };
        for_pieces(*r.busy_count * panels, [&](int piece, int next) {
            int expert = r.busy[piece / panels], panel = piece % panels;
            int first = r.begins[expert], rows = r.begins[expert + 1] - first;
            Product p{s.x, m.hidden_padded, w.experts_gate_up, m.hidden_padded / 2, rows,
                      r.tokens + first};
            auto finish = [&](int row, const float* outputs) {
                Act* out = s.gated + (long)(first + row) * width + panel * PANEL / 2;
                store_gated(outputs, nullptr, m.gelu, out);
            };
            multiply_panel(p, place(piece), next < 0 ? -1 : place(next), finish);
        });
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
                    multiply_panel(p, panel, panel + 1 < to ? panel + 1 : -1,
                                   [&](int row, const float* outputs) {
                        long token = rows.token(r.tokens[first + row]);
                        float* hidden = s.hidden + token * m.hidden_padded + panel * PANEL;
                        Vf share = vset(r.pair_shares[first + row]);
                        for (int j = 0; j < PANEL; j += W)
                            vstore(hidden + j, vfma(vload(outputs + j), share, vload(hidden + j)));
                    });
            }
        part++;
    }

    // Whole heads at a time, and so many rows of them as stay in the first cache. Of units that are
    // queries alone only the rows that go on are computed.
    void query_key_value(int layer, const LayerWeights& w, const Act* x) {
        int columns = unit_columns(m), heads = columns / m.head_padded;
        int units = (all_heads(m) + heads - 1) / heads;
        float* values = s.unit + (long)thread * UNIT_ROWS * columns;
        HeadWriter writer{m, b, s, layer, w};
        for_pieces(units, [&](int u, int next) {
            const int32_t* tokens = (u + 1) * heads <= m.heads ? rows.tokens : nullptr;
            int count = tokens ? rows.count : b.tokens;
            for (int first = 0; first < count; first += UNIT_ROWS) {
                UnitRows part{tokens, first, std::min(UNIT_ROWS, count - first)};
                multiply_unit(w, x, part, u, first == 0 ? next : -1, values);
                for (int h = 0; h < heads && u * heads + h < all_heads(m); h++)
                    writer.finish_head(u * heads + h, part, values + h * m.head_padded, columns);
            }
        });
    }

    void multiply_unit(const LayerWeights& w, const Act* x, const UnitRows& part, int unit,
                       int next_unit, float* values) {
        int columns = unit_columns(m), panels = columns / PANEL;
        long width = m.hidden_padded;
        Product p{x, width, w.query_key_value, width / 2, part.count, nullptr};
        if (part.tokens)
            p.row_of = part.tokens + part.first;
        else
            p.a += part.first * width;
        for (int i = 0; i < panels; i++) {
            int next = i + 1 < panels && part.first == 0 ? unit * panels + i + 1
                       : next_unit >= 0                  ? next_unit * panels
                                                         : -1;
            multiply_panel(p, unit * panels + i, next, [&](int row, const float* outputs) {
                memcpy(values + (long)row * columns + i * PANEL, outputs, PANEL * sizeof(float));
            });
        }
    }

    void attend(int layer) {
        int most = attention_rows_max(m), from, to;
        float* softmax = s.softmax + (long)thread * 2 * most;
        AttentionState state{s.sums + (long)thread * most * m.head_padded, softmax, softmax + most};
        while (next_piece(rows.task_count, 1, from, to)) {
            const AttentionTask& task = rows.tasks[from];
            run_attention(m, b, task, layer, s.first_tokens[task.sequence], s.queries, s.attended,
                          state);
        }
        part++;
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

// The rows of the last layer, without tasks.
Rows wanted_rows(const StepBatch& b, const Scratch& s) {
    if (b.keeps_all) return {nullptr, b.tokens, s.last_tasks, 0};
    int count = 0;
    std::fill(s.wanted, s.wanted + b.tokens, 0);
    for (int r = 0; r < b.logit_rows; r++) s.wanted[b.logit_tokens[r]] = 1;
    for (int t = 0; t < b.tokens; t++)
        if (s.wanted[t]) s.wanted[count++] = t;
    return {count < b.tokens ? s.wanted : nullptr, count, s.last_tasks, 0};
}

}  // namespace

// Bytes of scratch memory that a step of so many tokens and sequences needs.
TRIOLET_API int64_t triolet_scratch_bytes(const ModelWeights* m, int64_t tokens, int64_t sequences,
                                          int32_t threads) {
    return (int64_t)lay_out(*m, nullptr, tokens, sequences, threads).bytes + LINE;
}

// Logits of other tokens of the step that was computed last with this scratch memory, and kept all.
TRIOLET_API int32_t triolet_logits(const ModelWeights* m, const StepBatch* b, void* scratch,
                                   float* logits, int32_t threads) {
    for (int r = 0; r < b->logit_rows; r++)
        if (b->logit_tokens[r] < 0 || b->logit_tokens[r] >= b->tokens) return 5;
    Scratch s = lay_out(*m, scratch, b->tokens, b->sequences, threads);
    s.counters[0].next = 0;
#pragma omp parallel num_threads(threads)
    Pass(*m, *b, s, logits).finish_logits();
    return 0;
}

// Computes a step's tokens into the cache, and the wanted logits, [logit_rows][vocab_padded].
// Returns 0, or what is wrong with the batch, and then nothing was computed.
TRIOLET_API int32_t triolet_forward(const ModelWeights* m, const StepBatch* b, void* scratch,
                                    float* logits, int32_t threads) {
    if (int fault = find_fault(*m, *b)) return fault;
    if (b->tokens == 0) return 0;
    Scratch s = lay_out(*m, scratch, b->tokens, b->sequences, threads);
    for (int i = 0; i < m->layers * PARTS + 1; i++) s.counters[i].next = 0;
    int token = 0;
    for (int sequence = 0; sequence < b->sequences; sequence++) {
        s.first_tokens[sequence] = token;
        for (int i = 0; i < b->counts[sequence]; i++) s.sequence_of[token++] = sequence;
    }
    Rows all{nullptr, b->tokens, s.tasks, 0}, last = wanted_rows(*b, s);
    all.task_count = plan_attention(*m, *b, all, threads, s.tasks);
    last.task_count = plan_attention(*m, *b, last, threads, s.last_tasks);
#pragma omp parallel num_threads(threads)
    Pass(*m, *b, s, logits).run(all, last);
    return 0;
}
