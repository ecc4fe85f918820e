// Draws a token from each row of logits, as `engine/worker/torch/sampler.py` specifies bit for bit.
//
// A row is done by one thread, from memory that it reads two or three times while it is near. What
// is skipped (tokens too far below to win or to matter) is skipped by bounds, never by chance: the
// result is the specified one whatever the instruction set, the threads and the other rows.
#include <omp.h>
#include "sampler.h"
#include "library.h"
#include "select.h"

namespace {

constexpr int BLOCK = 1024;  // logits whose largest is found before it is compared

struct Summary {
    float largest;
    int32_t first;  // the lowest id of the largest
    bool numbers;   // neither NaN nor +inf
};

Summary summarise(const float* z, long stride) {
    Vf infinite = vset(INFINITY);
    float largest = -INFINITY;
    long block = 0;
    uint32_t wrong = 0;
    for (long begin = 0; begin < stride; begin += BLOCK) {
        long end = std::min(begin + BLOCK, stride);
        Vf most[4];
        for (Vf& m : most) m = vset(-INFINITY);
        for (long i = begin; i < end; i += 4 * W)
            for (int j = 0; j < 4; j++) {
                Vf v = vload(z + i + j * W);
                wrong |= lanes_not_below(v, infinite);
                most[j] = vmax(most[j], v);
            }
        float found = vlargest(vmax(vmax(most[0], most[1]), vmax(most[2], most[3])));
        if (found > largest) {
            largest = found;
            block = begin;
        }
    }
    long first = block;
    if (!wrong && largest > -INFINITY)
        while (z[first] != largest) first++;
    return {largest, (int32_t)first, wrong == 0};
}

// ---- edits

void forbid_others(float* z, long stride, const uint32_t* allowed, int vocab) {
    for (long i = 0; i < stride && i < vocab; i += W) {
        uint32_t bits = allowed[i / 32] >> (i % 32);
        vstore(z + i, select_lanes(bits, vload(z + i), vset(-INFINITY)));
    }
}

void penalise(float* z, const RowParameters& p) {
    for (int i = 0; i < p.seen_count; i++) {
        float& logit = z[p.seen_ids[i]];
        float x = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
        if (p.seen_counts[i])
            x = (x - p.frequency_penalty * (float)p.seen_counts[i]) - p.presence_penalty;
        logit = x;
    }
}

struct RowEdits {
    const uint32_t* mask;
    const int32_t* forbidden;
    int forbidden_count;
};

bool has_edits(const RowParameters& p, const RowEdits& e) {
    return p.allowed || p.bias_count || p.seen_count || e.mask || e.forbidden_count;
}

void edit(float* z, long stride, int vocab, const RowParameters& p, const RowEdits& e) {
    if (p.allowed) forbid_others(z, stride, p.allowed, vocab);
    if (e.mask) forbid_others(z, stride, e.mask, vocab);
    for (int i = 0; i < e.forbidden_count; i++) z[e.forbidden[i]] = -INFINITY;
    for (int i = 0; i < p.bias_count; i++) z[p.bias_ids[i]] += p.bias_values[i];
    penalise(z, p);
}

// ---- the draw

// The last place that top_k and top_p keep.
Place end_of_filters(Scratch& s, const float* z, long stride, const Scale& scale,
                     const RowParameters& p) {
    if (p.top_k <= 0 || p.top_k >= stride)
        return p.top_p < 1 ? end_of_top_p(s, z, stride, scale, p.top_p) : LAST_PLACE;
    int k = take_first(z, stride, p.top_k, s.first);
    if (p.top_p < 1) return end_of_first(s, k, scale, p.top_p);
    if (k < p.top_k) return LAST_PLACE;
    return *std::max_element(s.first, s.first + k, before);
}

struct Winner {
    double score = -INFINITY;
    int32_t id = 0;

    void consider(double other, int32_t other_id) {
        if (other > score || (other == score && other_id < id)) {
            score = other;
            id = other_id;
        }
    }
};

// Gumbel noise is at most this, so a token that is further below the best score cannot win.
constexpr float NOISE_MOST = 22.89f;
// Bounds are computed in float32; they may be wrong by less than this.
constexpr float SAFETY = 0.01f;
constexpr float LN_2 = 0.6931472f;

// An upper bound of each lane's noise. -log(-log(u)) <= -log(1 - u), and the exponent and mantissa
// of a float, taken as one number, are at most 2**23 times its logarithm (plus 127).
Vf noise_bound(const uint32_t* words) {
    V32 x;
    memcpy(&x, words, sizeof x);
    Vf rest = vfloat((Vi)(~x >> 1));  // (1 - u) * 2**31
    return vsub(vset((127 + 31) * LN_2), vmul(vfloat((Vi)rest), vset(LN_2 * 0x1p-23f)));
}

int32_t draw(const float* z, long stride, const Scale& scale, const Summary& summary,
             const RowParameters& p, uint32_t position, Place last) {
    Draw bits(p.seed, position, p.choice);
    alignas(64) uint32_t words[GROUP];
    alignas(64) float y[GROUP];
    Winner winner;
    // The first of the order is always kept; its score is what the others have to reach.
    random_group(bits, summary.first / GROUP * GROUP, words);
    winner.consider(gumbel(words[summary.first % GROUP]), summary.first);
    for (long group = 0; group < stride; group += GROUP) {
        float reach = (float)winner.score - SAFETY;
        Vf least = vset(std::max(reach - NOISE_MOST, p.least));
        uint32_t kept[GROUP / W], any = 0;
        for (int j = 0; j < GROUP / W; j++) {
            Vf v = vload(z + group + j * W), scaled = scale.of(v);
            vstore(y + j * W, scaled);
            kept[j] = lanes_at_least(scaled, least) & lanes_at_least(v, vset(last.z));
            any |= kept[j];
        }
        if (!any) continue;
        random_group(bits, (uint32_t)group, words);
        for (int j = 0; j < GROUP / W; j++) {
            if (!kept[j]) continue;
            Vf most = vadd(vload(y + j * W), noise_bound(words + j * W));
            uint32_t lanes = kept[j] & lanes_at_least(most, vset(reach));
            for (; lanes; lanes &= lanes - 1) {
                int at = j * W + __builtin_ctz(lanes);
                int32_t id = (int32_t)group + at;
                if (z[id] == last.z && id > last.id) continue;
                winner.consider((double)y[at] + gumbel(words[at]), id);
            }
        }
    }
    return winner.id;
}

// Notes the token for the penalties to come.
void note_seen(RowParameters& p, int32_t token) {
    if (!p.seen_ids) return;
    int i = 0;
    while (i < p.seen_count && p.seen_ids[i] != token) i++;
    if (i == p.seen_max) return;
    if (i == p.seen_count) {
        p.seen_ids[i] = token;
        p.seen_counts[i] = 0;
        p.seen_count++;
    }
    p.seen_counts[i]++;
}

// ---- logprobs

struct Columns {
    int32_t* ids;
    float* logprobs;
    int32_t* rank;
};

int32_t rank_of(const float* z, long stride, int32_t token) {
    Vf own = vset(z[token]);
    long larger = 0, i = 0;
    for (; i + W <= token; i += W) larger += __builtin_popcount(lanes_at_least(vload(z + i), own));
    uint32_t lower = lanes_at_least(vload(z + i), own) & ((1u << (token - i)) - 1);
    uint32_t upper = lanes_greater(vload(z + i), own) & ~((1u << (token - i)) - 1);
    larger += __builtin_popcount(lower) + __builtin_popcount(upper);
    for (i += W; i < stride; i += W)
        larger += __builtin_popcount(lanes_greater(vload(z + i), own));
    return (int32_t)larger + 1;
}

void write_logprobs(Scratch& s, const float* z, long stride, int32_t token, int alternatives,
                    float largest, Columns out) {
    int64_t total = weigh(z, stride, {largest, 1.f});
    double log_sum = exact_log((double)total / WEIGHT_ONE);
    int count = alternatives ? take_first(z, stride, alternatives, s.first) : 0;
    std::sort(s.first, s.first + count, before);
    out.ids[0] = token;
    for (int i = 0; i < count; i++) out.ids[i + 1] = s.first[i].id;
    for (int32_t id = 0; count < alternatives; id++)  // the rest is -inf, by id
        if (z[id] == -INFINITY) out.ids[++count] = id;
    for (int i = 0; i <= alternatives; i++)
        out.logprobs[i] = (float)(((double)z[out.ids[i]] - (double)largest) - log_sum);
    *out.rank = rank_of(z, stride, token);
}

// ---- rows and calls

void hide_padding(float* z, long stride, int vocab) {
    std::fill(z + vocab, z + stride, -INFINITY);
}

Failure sample_row(const SampleCall& call, int row, Scratch& s) {
    float* z = call.logits + row * call.stride;
    RowParameters& p = call.table[call.table_rows[row]];
    hide_padding(z, call.stride, call.vocab);
    Summary raw = summarise(z, call.stride), edited = raw;
    if (!raw.numbers) return NOT_NUMBERS;
    const float* before_edits = z;
    RowEdits e{nullptr, nullptr, 0};
    if (call.mask_of && call.mask_of[row] >= 0)
        e.mask = call.masks + (long)call.mask_of[row] * ((call.vocab + 31) / 32);
    if (call.forbidden_ends) {
        int begin = row ? call.forbidden_ends[row - 1] : 0;
        e.forbidden = call.forbidden + begin;
        e.forbidden_count = call.forbidden_ends[row] - begin;
    }
    if (has_edits(p, e)) {
        if (p.logprobs >= 0) before_edits = std::copy(z, z + call.stride, s.raw) - call.stride;
        edit(z, call.stride, call.vocab, p, e);
        edited = summarise(z, call.stride);
    }
    if (!edited.numbers) return NOT_NUMBERS;
    if (edited.largest == -INFINITY) return ALL_FORBIDDEN;
    int32_t token = edited.first;
    if (p.inverse_temperature > 0) {
        Scale scale{edited.largest, p.inverse_temperature};
        Place last = end_of_filters(s, z, call.stride, scale, p);
        token = draw(z, call.stride, scale, edited, p, (uint32_t)call.positions[row], last);
    }
    call.tokens[row] = token;
    note_seen(p, token);
    if (p.logprobs >= 0) {
        long at = (long)row * call.width;
        Columns out{call.top_ids + at, call.logprobs + at, call.ranks + row};
        int alternatives = std::min(p.logprobs, call.vocab);
        write_logprobs(s, before_edits, call.stride, token, alternatives, raw.largest, out);
    }
    return NONE;
}

Failure score_row(const ScoreCall& call, int row, Scratch& s) {
    float* z = call.logits + row * call.stride;
    hide_padding(z, call.stride, call.vocab);
    Summary raw = summarise(z, call.stride);
    if (!raw.numbers || raw.largest == -INFINITY) return NOT_NUMBERS;
    long at = (long)row * call.width;
    Columns out{call.top_ids + at, call.logprobs + at, call.ranks + row};
    write_logprobs(s, z, call.stride, call.targets[row], call.width - 1, raw.largest, out);
    return NONE;
}

// Bytes of one thread's scratch memory, and its arrays in it.
long scratch_bytes(long stride) {
    long row = stride + SLACK;
    return row * (2 * sizeof(float) + sizeof(int32_t) + sizeof(int64_t) + sizeof(Place))
        + BINS * sizeof(int64_t);
}

Scratch lay_out(char* memory, long stride) {
    long row = stride + SLACK;
    Scratch s;
    s.bins = (int64_t*)memory;
    s.weights = s.bins + BINS;
    s.first = (Place*)(s.weights + row);
    s.raw = (float*)(s.first + row);
    s.z = s.raw + row;
    s.ids = (int32_t*)(s.z + row);
    return s;
}

template <class Call, class Row>
void for_rows(const Call& call, char* scratch, Row row_of) {
    int threads = std::max(1, std::min(call.threads, call.rows));
    long bytes = scratch_bytes(call.stride);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch s = lay_out(scratch + omp_get_thread_num() * bytes, call.stride);
#pragma omp for schedule(dynamic, 1)
        for (int row = 0; row < call.rows; row++) call.failures[row] = row_of(call, row, s);
    }
}

}  // namespace

// Bytes of memory that calls of so many threads need, for rows of `stride` logits.
TRIOLET_API int64_t triolet_sample_scratch(int64_t stride, int32_t threads) {
    return threads * (int64_t)scratch_bytes(stride);
}

TRIOLET_API void triolet_sample(const SampleCall* call, void* scratch) {
    for_rows(*call, (char*)scratch, sample_row);
}

TRIOLET_API void triolet_score(const ScoreCall* call, void* scratch) {
    for_rows(*call, (char*)scratch, score_row);
}

// The noise of step 9 for some random words: for tests, as a draw shows too little of it.
TRIOLET_API void triolet_noise(const uint32_t* words, double* noise, int64_t count) {
    for (int64_t i = 0; i < count; i++) noise[i] = gumbel(words[i]);
}
