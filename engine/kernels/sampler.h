// The structures of sampling that Python fills in; `sampler.py` mirrors them.
#pragma once
#include <cstdint>

extern "C" {

// What a request asks for, kept in a table of the worker's rows. Arrays are null where not asked.
struct RowParameters {
    uint64_t seed;
    double top_p;                // 1: off
    const int32_t* bias_ids;
    const float* bias_values;
    const uint32_t* allowed;     // a bit for each token, 32 a word, low first
    int32_t* seen_ids;           // tokens of prompt and output, kept up here after each draw
    int32_t* seen_counts;        // how often they are in the output
    uint32_t choice;
    float inverse_temperature;   // 0: greedy
    float least;                 // y of min_p; -inf: off
    int32_t top_k;               // 0: off
    int32_t logprobs;            // alternatives; -1: no logprobs
    float repetition_penalty, frequency_penalty, presence_penalty;
    int32_t bias_count;
    int32_t seen_count, seen_max;
    int32_t padding;
};

// One call: draws a token from each row of logits. Rows are `stride` floats, a multiple of 64;
// what is beyond the vocabulary is overwritten, as are the logits that parameters edit.
struct SampleCall {
    float* logits;
    int64_t stride;
    RowParameters* table;
    const int32_t* table_rows;      // of each row of logits, its place in the table
    const int32_t* positions;       // of the token in the output
    const uint32_t* masks;          // of ceil(vocab / 32) words each
    const int32_t* mask_of;         // null: no masks; -1: none for this row
    const int32_t* forbidden;       // ids, row after row
    const int32_t* forbidden_ends;  // where each row's end; null: none
    int32_t* tokens;                // out, as all that follow
    int32_t* failures;              // 0, or a `Failure`
    int32_t* top_ids;               // [row][width], as far as the row's own width
    float* logprobs;
    int32_t* ranks;
    int32_t vocab, rows, width, threads;
};

// Scores one given token of each row of logits, as `SampleCall` does sampled ones.
struct ScoreCall {
    float* logits;
    int64_t stride;
    const int32_t* targets;
    int32_t* failures;
    int32_t* top_ids;  // [row][width]
    float* logprobs;
    int32_t* ranks;
    int32_t vocab, rows, width, threads;
};
}

enum Failure : int32_t { NONE = 0, NOT_NUMBERS = 1, ALL_FORBIDDEN = 2 };
