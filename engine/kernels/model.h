// The structures that Python fills in: weights, sizes and one step. `binding.py` mirrors them.
//
// Sizes that end in `_padded` are those of the memory: heads to a multiple of 32 channels, each
// half of a head by itself (so that rotation meets whole vectors); hidden state and vocabulary to
// 64; the MLP's width to 32. Padding is zero in weights and stays zero in activations.
//
//   packed weight  [output / 64][input / 2][64][2]    one panel of 64 outputs after the other
//   keys, values   [layer][block][kv head][ keys: channel / 2, 16 tokens, 2
//                                         | values: 8 pairs of tokens, channel, 2 ]
//   gate and up    in one product: 16 outputs of gate, 16 of up, and so on
//   rotation       [position][ cosines of half a head | sines ]
#pragma once
#include <cstdint>
#include "vec.h"

constexpr int PANEL = 64;         // outputs of one packed panel
constexpr int LINE = 64;          // bytes of a cache line; what two threads write is as far apart
constexpr int BLOCK_TOKENS = 16;  // tokens of one KV block
constexpr int GATE_GROUP = 16;    // outputs of gate, then as many of up

extern "C" {

struct LayerWeights {
    const bf16* query_key_value;
    const bf16* attention_output;
    const bf16* gate_up;
    const bf16* down;
    const float* query_key_value_bias;  // biases and head norms: null where there are none
    const float* attention_output_bias;
    const float* gate_up_bias;
    const float* down_bias;
    const float* attention_norm;
    const float* mlp_norm;
    const float* query_norm;
    const float* key_norm;
    const float* attention_end_norm;  // of what a part adds to the hidden state; null: none
    const float* mlp_end_norm;
    const float* router;  // a mixture's, [experts_padded][hidden_padded]; null: the MLP is dense
    const bf16* experts_gate_up;  // [expert], each as a dense MLP's
    const bf16* experts_down;
    const float* rotation;
    int64_t window;  // a token sees so many, itself included; 0: all before it
};

struct ModelWeights {
    int32_t hidden, hidden_padded;
    int32_t layers, heads, kv_heads;
    int32_t head_size, head_padded;
    int32_t intermediate_padded;
    int32_t vocab, vocab_padded;
    int32_t positions;  // rows of each layer's `rotation`
    int32_t blocks;     // of the KV memory
    int32_t experts, experts_padded;
    int32_t experts_chosen;      // of each token
    int32_t experts_normalized;  // their shares are scaled to a sum of 1
    int32_t expert_intermediate_padded;
    int32_t gelu;       // the gate is a GELU by its formula with tanh; 0: a SiLU
    float norm_epsilon, attention_scale;
    float embedding_scale;  // as bf16
    float logit_softcap;    // 0: none
    const LayerWeights* layer;
    const bf16* embedding;  // [vocab][hidden_padded]; null: looked up in the packed head
    const bf16* head;
    const float* norm;
    bf16* kv;
};

// One step. Sequence s computes `counts[s]` tokens from position `begins[s]` on; its blocks are row
// `rows[s]` of the block tables. Tokens of all sequences follow each other.
struct StepBatch {
    int32_t tokens, sequences, logit_rows;
    int32_t table_stride;
    int32_t keeps_all;  // other tokens' logits are asked for later; 0: only those named here
    const int32_t* token_ids;
    const int32_t* rows;
    const int32_t* begins;
    const int32_t* counts;
    const int32_t* block_tables;
    const int32_t* logit_tokens;  // whose logits are wanted, as indices of tokens
    // [tokens]: the hidden state that each begins with, [hidden]; null: looked up by its id. The
    // array itself is null where all are.
    const float* const* embeddings;
};
}

// Heads whose outputs are computed together: their columns fill whole panels.
static inline int unit_columns(const ModelWeights& m) {
    return m.head_padded % PANEL == 0 ? m.head_padded : 2 * m.head_padded;
}
static inline int all_heads(const ModelWeights& m) { return m.heads + 2 * m.kv_heads; }
// Elements of one head's keys and values in one block, and of one block of one layer.
static inline long head_block(const ModelWeights& m) { return 2L * BLOCK_TOKENS * m.head_padded; }
static inline long block_stride(const ModelWeights& m) { return m.kv_heads * head_block(m); }
