// The element-wise parts of a layer: norm, gate, rotation; each a function of one row alone.
#pragma once
#include <cmath>
#include "model.h"

// Into the second cache, so many bytes that are written to soon.
static inline void fetch_to_write(const void* place, long bytes) {
    for (long i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)place + i, 1, 2);
}

// 1 / root of the mean square of `count` values; `padded` of them are in memory, the rest zero.
static inline float inverse_rms(const float* x, int count, int padded, float epsilon) {
    Vf squares = vset(0.f);
    for (int i = 0; i < padded; i += W) {
        Vf v = vload(x + i);
        squares = vfma(v, v, squares);
    }
    return 1.f / sqrtf(vsum(squares) / (float)count + epsilon);
}

// Into `out`, and unrounded into `exact` unless that is null.
static inline void norm_row(const float* x, const float* weight, Act* out, float* exact,
                            const ModelWeights& m) {
    Vf scale = vset(inverse_rms(x, m.hidden, m.hidden_padded, m.norm_epsilon));
    for (int i = 0; i < m.hidden_padded; i += W) {
        Vf normed = vmul(vmul(vload(x + i), scale), vload(weight + i));
        store_act(out + i, normed);
        if (exact) vstore(exact + i, normed);
    }
}

// hidden += norm of what a part adds to it
static inline void add_normed_row(float* hidden, const float* added, const float* weight,
                                  const ModelWeights& m) {
    Vf scale = vset(inverse_rms(added, m.hidden, m.hidden_padded, m.norm_epsilon));
    for (int i = 0; i < m.hidden_padded; i += W) {
        Vf normed = vmul(vmul(vload(added + i), scale), vload(weight + i));
        vstore(hidden + i, vadd(vload(hidden + i), normed));
    }
}

// silu(gate) * up, or gelu(gate) * up. Half of 1 + tanh(u) is 1 / (1 + e**-2u); u, here in powers
// of two, is the root of 2 / pi times (gate + 0.044715 gate**3).
static inline Vf gated(Vf gate, Vf up, bool gelu) {
    constexpr float LINEAR = -2.f * LOG2E * 0.797884561f, CUBIC = LINEAR * 0.044715f;
    Vf slope = gelu ? vfma(vmul(gate, gate), vset(CUBIC), vset(LINEAR)) : vset(-LOG2E);
    Vf e = vexp2(vmul(gate, slope));
    return vmul(up, vdiv(gate, vadd(vset(1.f), e)));
}

// A panel of the joint product of gate and up: half as many outputs.
static inline void store_gated(const float* outputs, const float* bias, bool gelu, Act* out) {
    for (int i = 0; i < PANEL; i += W) {
        int group = i / GATE_GROUP;
        if (group % 2) continue;
        Vf gate = vload(outputs + i), up = vload(outputs + i + GATE_GROUP);
        if (bias) {
            gate = vadd(gate, vload(bias + i));
            up = vadd(up, vload(bias + i + GATE_GROUP));
        }
        store_act(out + group / 2 * GATE_GROUP + i % GATE_GROUP, gated(gate, up, gelu));
    }
}

// cap * tanh(x / cap)
static inline Vf softcapped(Vf x, float cap) {
    Vf e = vexp2(vmul(x, vset(2.f * LOG2E / cap)));
    return vsub(vset(cap), vdiv(vset(2.f * cap), vadd(vset(1.f), e)));
}

// Norm of one head (weight null: none), then its rotation by the position's cosines and sines.
static inline void norm_and_rotate(float* x, const float* weight, const float* rotation,
                                   const ModelWeights& m) {
    int size = m.head_padded, half = size / 2;
    if (weight) {
        Vf scale = vset(inverse_rms(x, m.head_size, size, m.norm_epsilon));
        for (int i = 0; i < size; i += W)
            vstore(x + i, vmul(vmul(vload(x + i), scale), vload(weight + i)));
    }
    for (int i = 0; i < half; i += W) {
        Vf a = vload(x + i), b = vload(x + half + i);
        Vf cosine = vload(rotation + i), sine = vload(rotation + half + i);
        vstore(x + i, vsub(vmul(a, cosine), vmul(b, sine)));
        vstore(x + half + i, vfma(b, cosine, vmul(a, sine)));
    }
}
