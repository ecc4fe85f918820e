// The working memory of one step: what threads hand each other between the parts of a pass.
#pragma once
#include <algorithm>
#include <cstddef>
#include "attention.h"
#include "experts.h"

constexpr int PARTS = 6;        // counted parts of a layer, at most
constexpr int UNIT_ROWS = 48;   // of a unit of heads: their products stay in the first cache
constexpr int FEW_TOKENS = 4;   // so few rows are normed by every thread, which spares a meeting

struct alignas(LINE) Counter {
    int next;
};

// The memory of a step: laid out in one block that the caller provides.
struct Scratch {
    float* hidden;             // [token][hidden_padded]
    float* added;              // the same: what a part adds, where that is normed
    Act* x;                    // [token][hidden_padded]: normed
    Act* queries;              // [token][head][head_padded]
    Act* attended;             // the same
    Act* gated;                // [token][intermediate_padded], or [pair] of the experts'
    float* unit;               // [thread][UNIT_ROWS][unit_columns]
    float* sums;               // [thread][row][head_padded]
    float* softmax;            // [thread][2][row]
    Act* own;                  // [thread][FEW_TOKENS][hidden_padded]
    AttentionTask* tasks;
    AttentionTask* last_tasks; // of the last layer
    int32_t* wanted;           // [token]: the tokens whose logits are wanted, ascending
    int32_t* first_tokens;     // [sequence]
    int32_t* sequence_of;      // [token]
    Counter* counters;         // [layer × PARTS + 1]
    Routing routing;
    size_t bytes;
};

template <class T>
static inline T* take(char* base, size_t& used, size_t count) {
    used = (used + LINE - 1) / LINE * LINE;
    T* place = (T*)(base + used);
    used += count * sizeof(T);
    return place;
}

static inline void lay_out_routing(const ModelWeights& m, Routing& r, char* base, size_t& used,
                                   long tokens) {
    long pairs = tokens * m.experts_chosen;
    r.exact = take<float>(base, used, tokens * m.hidden_padded);
    r.scores = take<float>(base, used, tokens * m.experts_padded);
    r.chosen = take<int32_t>(base, used, pairs);
    r.shares = take<float>(base, used, pairs);
    r.begins = take<int32_t>(base, used, m.experts + 1);
    r.next = take<int32_t>(base, used, m.experts);
    r.busy = take<int32_t>(base, used, m.experts);
    r.busy_count = take<int32_t>(base, used, 1);
    r.tokens = take<int32_t>(base, used, pairs);
    r.pair_shares = take<float>(base, used, pairs);
}

static inline long gated_values(const ModelWeights& m, long tokens) {
    long pairs = tokens * m.experts_chosen;
    return std::max(tokens * m.intermediate_padded, pairs * m.expert_intermediate_padded);
}

static inline Scratch lay_out(const ModelWeights& m, void* memory, long tokens, long sequences,
                              long threads) {
    char* base = (char*)(((uintptr_t)memory + LINE - 1) / LINE * LINE);
    Scratch s;
    size_t used = 0;
    long rows = attention_rows_max(m), heads = (long)m.heads * m.head_padded;
    s.hidden = take<float>(base, used, tokens * m.hidden_padded);
    s.added = take<float>(base, used, m.layer->mlp_end_norm ? tokens * m.hidden_padded : 0);
    s.x = take<Act>(base, used, tokens * m.hidden_padded);
    s.queries = take<Act>(base, used, tokens * heads);
    s.attended = take<Act>(base, used, tokens * heads);
    s.gated = take<Act>(base, used, gated_values(m, tokens));
    s.unit = take<float>(base, used, threads * UNIT_ROWS * unit_columns(m));
    s.sums = take<float>(base, used, threads * rows * m.head_padded);
    s.softmax = take<float>(base, used, threads * 2 * rows);
    s.own = take<Act>(base, used, threads * FEW_TOKENS * m.hidden_padded);
    s.tasks = take<AttentionTask>(base, used, attention_tasks_max(m, tokens, sequences));
    s.last_tasks = take<AttentionTask>(base, used, attention_tasks_max(m, tokens, sequences));
    s.wanted = take<int32_t>(base, used, tokens);
    s.first_tokens = take<int32_t>(base, used, sequences);
    s.sequence_of = take<int32_t>(base, used, tokens);
    s.counters = take<Counter>(base, used, (long)m.layers * PARTS + 1);
    if (m.experts) lay_out_routing(m, s.routing, base, used, tokens);
    s.bytes = used;
    return s;
}
