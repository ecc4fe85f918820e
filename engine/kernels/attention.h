// Attention of one layer over paged keys and values, for decode rows and prompt chunks alike.
#pragma once
#include "model.h"

constexpr int CHUNK = 64;           // tokens that one round of the running softmax takes
constexpr int TILE_QUERIES = 16;    // query rows (tokens × heads of a group) of one task
constexpr int HEAD_PADDED_MAX = 512;

// The tokens of a step that a layer computes: all, or in the last one those whose logits are wanted,
// as the others only leave their keys and values there.
struct Rows {
    const int32_t* tokens;  // ascending; null: all
    int count;
    const struct AttentionTask* tasks;
    int task_count;

    int token(int row) const { return tokens ? tokens[row] : row; }
};

// A piece of attention's work: kv heads [head, head_end) of tokens [token, token_end).
struct AttentionTask {
    int32_t sequence;
    int32_t head, head_end;
    int32_t token, token_end;
};

// What one thread needs: the running softmax of all query rows of a task.
struct AttentionState {
    float* sums;       // [row][head_padded]
    float* largest;    // [row]
    float* weight;     // [row]
};

// Splits the work on `rows` into tasks, which may run in any order; returns how many.
int plan_attention(const ModelWeights& m, const StepBatch& batch, const Rows& rows, int threads,
                   AttentionTask* tasks);
long attention_tasks_max(const ModelWeights& m, long tokens, long sequences);
int attention_rows_max(const ModelWeights& m);

// Computes one task from rotated queries [token][head][head_padded] into `out`, of the same shape.
void run_attention(const ModelWeights& m, const StepBatch& batch, const AttentionTask& task,
                   int layer, int first_token, const Act* queries, Act* out, AttentionState state);
