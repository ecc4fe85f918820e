// A forward pass and the draws from its logits in one call. A caller's own code between two calls
// would have to come back into caches that the pass has emptied, only to make the second one.
#include <chrono>
#include "library.h"
#include "model.h"
#include "sampler.h"

TRIOLET_API int32_t triolet_forward(const ModelWeights* m, const StepBatch* b, void* scratch,
                                    float* logits, int32_t threads);
TRIOLET_API void triolet_sample(const SampleCall* call, void* scratch);

// As both; `forward_ns` is how long the pass took. A pass that is refused draws nothing.
TRIOLET_API int32_t triolet_step(const ModelWeights* m, const StepBatch* b, void* scratch,
                                 float* logits, int32_t threads, const SampleCall* call,
                                 void* sample_scratch, int64_t* forward_ns) {
    auto begin = std::chrono::steady_clock::now();
    int32_t fault = triolet_forward(m, b, scratch, logits, threads);
    auto end = std::chrono::steady_clock::now();
    *forward_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
    if (!fault) triolet_sample(call, sample_scratch);
    return fault;
}
