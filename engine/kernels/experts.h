// Mixtures of experts: which experts each token goes to, and the tokens of each expert.
//
// Bitwise rule: scores are sums over the hidden state in one order, and a token's choice and shares
// are functions of its own scores. What its experts compute is added in the order of their numbers,
// whichever other tokens they have.
#pragma once
#include <cmath>
#include "model.h"

constexpr int EXPERT_GROUP = 4;  // experts that are scored together
#if defined(__AVX512F__)
constexpr int SCORED_ROWS = 4;  // and tokens: accumulators that registers hold
#else
constexpr int SCORED_ROWS = 2;
#endif

// A *pair* is a token with one of its experts; those of an expert follow each other.
struct Routing {
    float* exact;         // [token][hidden_padded]: normed, for the router
    float* scores;        // [token][experts_padded]
    int32_t* chosen;      // [token][experts_chosen]: the most probable first
    float* shares;        // the same: their results are multiplied by it
    int32_t* begins;      // [expert + 1]: its pairs
    int32_t* next;        // [expert]
    int32_t* busy;        // experts that have pairs, in order
    int32_t* busy_count;  // one number
    int32_t* tokens;      // [pair]
    float* pair_shares;   // [pair]
};

template <int ROWS>
static inline void score_rows(const ModelWeights& m, const float* x, const float* router,
                              float* scores) {
    long width = m.hidden_padded;
    Vf c[ROWS][EXPERT_GROUP];
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < EXPERT_GROUP; e++) c[r][e] = vset(0.f);
    for (long i = 0; i < width; i += W) {
        Vf weight[EXPERT_GROUP];
        for (int e = 0; e < EXPERT_GROUP; e++) weight[e] = vload(router + e * width + i);
        for (int r = 0; r < ROWS; r++) {
            Vf v = vload(x + r * width + i);
            for (int e = 0; e < EXPERT_GROUP; e++) c[r][e] = vfma(v, weight[e], c[r][e]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < EXPERT_GROUP; e++)
            scores[(long)r * m.experts_padded + e] = vsum(c[r][e]);
}

// Scores of experts [expert, expert + EXPERT_GROUP) for all tokens.
static inline void score_experts(const ModelWeights& m, const float* router, int expert, int tokens,
                                 const Routing& r) {
    const float* weights = router + (long)expert * m.hidden_padded;
    for (int t = 0; t < tokens;) {
        const float* x = r.exact + (long)t * m.hidden_padded;
        float* scores = r.scores + (long)t * m.experts_padded + expert;
        bool many = tokens - t >= SCORED_ROWS;
        if (many)
            score_rows<SCORED_ROWS>(m, x, weights, scores);
        else
            score_rows<1>(m, x, weights, scores);
        t += many ? SCORED_ROWS : 1;
    }
}

// The expert of the highest score after `last` in the order of scores, of equals the lower number;
// -1 where the rest are no numbers.
static inline int next_expert(const float* scores, int experts, int last) {
    int best = -1;
    for (int e = 0; e < experts; e++) {
        bool left = last < 0 || scores[e] < scores[last] || (scores[e] == scores[last] && e > last);
        if (left && scores[e] == scores[e] && (best < 0 || scores[e] > scores[best])) best = e;
    }
    return best;
}

static inline bool is_among(const int32_t* chosen, int count, int expert) {
    for (int i = 0; i < count; i++)
        if (chosen[i] == expert) return true;
    return false;
}

// A token's experts and their shares, from its scores.
static inline void choose_experts(const ModelWeights& m, int token, const Routing& r) {
    float* scores = r.scores + (long)token * m.experts_padded;
    int32_t* chosen = r.chosen + (long)token * m.experts_chosen;
    float* shares = r.shares + (long)token * m.experts_chosen;
    int place = 0, best = -1;
    while (place < m.experts_chosen && (best = next_expert(scores, m.experts, best)) >= 0)
        chosen[place++] = best;
    for (int e = 0; place < m.experts_chosen; e++)  // the rest scored what is no number
        if (!is_among(chosen, place, e)) chosen[place++] = e;
    for (int e = m.experts; e < m.experts_padded; e++) scores[e] = -INFINITY;
    Vf top = vset(scores[chosen[0]]), total = vset(0.f);
    for (int e = 0; e < m.experts_padded; e += W) {
        Vf odds = vexp2(vmul(vsub(vload(scores + e), top), vset(LOG2E)));
        vstore(scores + e, odds);
        total = vadd(total, odds);
    }
    float sum = m.experts_normalized ? 0.f : vsum(total);
    for (place = 0; place < m.experts_chosen; place++) {
        shares[place] = scores[chosen[place]];
        if (m.experts_normalized) sum += shares[place];
    }
    for (place = 0; place < m.experts_chosen; place++) shares[place] /= sum;
}

// The pairs of each expert, tokens in order.
static inline void group_by_expert(const ModelWeights& m, int tokens, const Routing& r) {
    long pairs = (long)tokens * m.experts_chosen;
    for (int e = 0; e < m.experts; e++) r.next[e] = 0;
    for (long i = 0; i < pairs; i++) r.next[r.chosen[i]]++;
    r.begins[0] = *r.busy_count = 0;
    for (int e = 0; e < m.experts; e++) {
        if (r.next[e]) r.busy[(*r.busy_count)++] = e;
        r.begins[e + 1] = r.begins[e] + r.next[e];
        r.next[e] = r.begins[e];
    }
    for (long i = 0; i < pairs; i++) {
        int pair = r.next[r.chosen[i]]++;
        r.tokens[pair] = (int32_t)(i / m.experts_chosen);
        r.pair_shares[pair] = r.shares[i];
    }
}
