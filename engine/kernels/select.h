// Prefixes of a row's order (largest first, of equals the lowest id) without sorting the row.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>
#include "exact.h"

// A place in the order: a token is kept if it is not behind it.
struct Place {
    float z;
    int32_t id;
};
static inline bool before(const Place& a, const Place& b) {
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}
constexpr Place LAST_PLACE = {-INFINITY, INT32_MAX};

constexpr int BINS = 2048;
constexpr int SORTED_MAX = 48;  // so few are sorted sooner than counted in bins
constexpr int SLACK = 64;       // of the list of firsts, beside twice their number

// Memory of one thread. Arrays hold a row, and some more where they are written by vectors.
struct Scratch {
    float* raw;        // the row before its edits
    float* z;          // candidates: logits,
    int32_t* ids;      // ids in ascending order,
    int64_t* weights;  // and weights
    Place* first;
    int64_t* bins;
};

// ---- the first k

// Puts the first `k` of the order into `out`, in no order, and returns how many; tokens of -inf are
// left out. `out` holds 2 k + SLACK places, or a row and SLACK.
static inline int take_first(const float* z, long stride, int k, Place* out) {
    long full = std::min(2L * k, stride) + SLACK - W;
    float least = -INFINITY;
    long count = 0;
    auto shrink = [&] {
        if (count <= k) return;
        std::nth_element(out, out + k - 1, out + count, before);
        count = k;
        least = out[k - 1].z;
    };
    for (long i = 0; i < stride; i += W) {
        Vf v = vload(z + i);
        // Later ones that equal the last of k are behind it, so only larger ones count.
        uint32_t lanes = lanes_greater(v, vset(least));
        for (; lanes; lanes &= lanes - 1) {
            int lane = __builtin_ctz(lanes);
            out[count++] = {z[i + lane], (int32_t)(i + lane)};
        }
        if (count > full) shrink();
    }
    shrink();
    return (int)count;
}

// ---- the shortest prefix with a weight of at least `needed`

static inline uint32_t key_of(float z) {  // ascending with z; -0 as +0
    float plus = z + 0.f;
    uint32_t bits;
    memcpy(&bits, &plus, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The last place of the prefix, among `count` candidates in ascending order of their ids.
static Place end_of_prefix(Scratch& s, long count, int64_t needed) {
    if (count == 0) return LAST_PLACE;  // no row comes here; one that did would keep all
    while (count > SORTED_MAX) {
        uint32_t most = 0, least = UINT32_MAX;
        for (long i = 0; i < count; i++) {
            uint32_t key = key_of(s.z[i]);
            most = std::max(most, key);
            least = std::min(least, key);
        }
        if (most == least) {  // equal logits, equal weights, in order by id
            long place = s.weights[0] > 0 ? (needed - 1) / s.weights[0] : 0;
            return {s.z[0], s.ids[std::min(place, count - 1)]};
        }
        int shift = 0;
        while (((most - least) >> shift) >= (uint32_t)BINS) shift++;
        std::fill_n(s.bins, BINS, 0);
        for (long i = 0; i < count; i++) s.bins[(most - key_of(s.z[i])) >> shift] += s.weights[i];
        uint32_t bin = 0;
        while (bin < (uint32_t)BINS - 1 && s.bins[bin] < needed) needed -= s.bins[bin++];
        long kept = 0;
        for (long i = 0; i < count; i++) {
            if ((most - key_of(s.z[i])) >> shift != bin) continue;
            s.z[kept] = s.z[i];
            s.ids[kept] = s.ids[i];
            s.weights[kept++] = s.weights[i];
        }
        count = kept;
    }
    int order[SORTED_MAX];
    for (int i = 0; i < count; i++) order[i] = i;
    std::sort(order, order + count, [&](int a, int b) {
        return before({s.z[a], s.ids[a]}, {s.z[b], s.ids[b]});
    });
    for (int i = 0; i < count - 1; i++) {
        needed -= s.weights[order[i]];
        if (needed <= 0) return {s.z[order[i]], s.ids[order[i]]};
    }
    return {s.z[order[count - 1]], s.ids[order[count - 1]]};
}

// y of step 6.
struct Scale {
    float largest, inverse;
    Vf of(Vf z) const { return vmul(vsub(z, vset(largest)), vset(inverse)); }
    float of(float z) const { return (z - largest) * inverse; }
};

static inline int64_t weigh(const float* z, long stride, const Scale& scale) {
    WeightSum sum;
    for (long i = 0; i < stride; i += W) {
        Vf y = scale.of(vload(z + i));
        if (lanes_at_least(y, vset(NO_WEIGHT))) sum.add(exact_exp(y));
    }
    return sum.total();
}

static inline int64_t share_of(int64_t total, double top_p) {
    return std::max((int64_t)1, (int64_t)((double)total * top_p));
}

// Bins by y: no bin but the last reaches further down than the weights do.
static inline Vi bin_of(Vf y) { return vround(vmul(y, vset((BINS - 1) / NO_WEIGHT))); }

// Appends the lanes of a vector whose bit is set to the candidates.
static inline long append(Scratch& s, long count, const float* z, long i, uint32_t lanes) {
    for (; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        s.z[count] = z[i + lane];
        s.ids[count++] = (int32_t)(i + lane);
    }
    return count;
}

static inline void weigh_candidates(Scratch& s, long count, const Scale& scale) {
    for (long i = 0; i < W; i++) s.z[count + i] = -INFINITY;
    for (long i = 0; i < count; i += W)
        store_weights(s.weights + i, exact_exp(scale.of(vload(s.z + i))));
}

// Where top_p ends in a whole row.
static Place end_of_top_p(Scratch& s, const float* z, long stride, const Scale& scale,
                          double top_p) {
    // Below `deep` the tail is lighter than what top_p leaves out (a row weighs at least
    // WEIGHT_ONE; half of that for safety), so it matters for the sum alone.
    float deep = std::max(NO_WEIGHT, (float)log((1.0 - top_p) / (2.0 * stride)));
    std::fill_n(s.bins, BINS, 0);
    WeightSum sum;
    for (long i = 0; i < stride; i += W) {
        Vf y = scale.of(vload(z + i));
        if (!lanes_at_least(y, vset(NO_WEIGHT))) continue;
        Vf e = exact_exp(y);
        sum.add(e);
        uint32_t lanes = lanes_at_least(y, vset(deep));
        if (!lanes) continue;
        int64_t weights[W];
        int32_t bins[W];
        store_weights(weights, e);
        Vi found = bin_of(y);
        memcpy(bins, &found, sizeof bins);
        if (lanes == ALL_LANES) {
#pragma GCC unroll 16
            for (int lane = 0; lane < W; lane++) s.bins[bins[lane]] += weights[lane];
            continue;
        }
        for (; lanes; lanes &= lanes - 1) {
            int lane = __builtin_ctz(lanes);
            s.bins[bins[lane]] += weights[lane];
        }
    }
    int64_t needed = share_of(sum.total(), top_p);
    int bin = 0;
    while (bin < BINS - 1 && s.bins[bin] < needed) needed -= s.bins[bin++];
    long count = 0;
    for (long i = 0; i < stride; i += W) {
        Vf y = scale.of(vload(z + i));
        uint32_t lanes = lanes_at_least(y, vset(deep));
        if (!lanes) continue;
        Vi found = bin_of(y);
        lanes &= lanes_equal(vfloat(found), vset((float)bin));
        count = append(s, count, z, i, lanes);
    }
    weigh_candidates(s, count, scale);
    return end_of_prefix(s, count, needed);
}

// Where top_p ends among the first k, which are in `s.first`.
static Place end_of_first(Scratch& s, int k, const Scale& scale, double top_p) {
    std::sort(s.first, s.first + k, [](const Place& a, const Place& b) { return a.id < b.id; });
    for (int i = 0; i < k; i++) {
        s.z[i] = s.first[i].z;
        s.ids[i] = s.first[i].id;
    }
    weigh_candidates(s, k, scale);
    int64_t total = 0;
    for (int i = 0; i < k; i++) total += s.weights[i];
    return end_of_prefix(s, k, share_of(total, top_p));
}
