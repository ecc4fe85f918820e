// Pages for memory that is written later: asked for beforehand, so that no step waits for them.
#include <errno.h>
#include <omp.h>
#include <sys/mman.h>
#include <algorithm>
#include "library.h"

namespace {

constexpr long PIECE = 2L << 20;  // a huge page
constexpr long PAGE = 4096;       // the least that there are
constexpr int POPULATE_WRITE = 23;  // MADV_POPULATE_WRITE, of Linux 5.14

}  // namespace

// Gives every page of this memory, which begins at a page; values stay. Returns 0, or the kernel's
// reason for having none.
TRIOLET_API int32_t triolet_populate(char* memory, int64_t bytes, int32_t threads) {
    int32_t fault = 0;
    long pieces = (bytes + PIECE - 1) / PIECE;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(max : fault)
    for (long piece = 0; piece < pieces; piece++) {
        char* begin = memory + piece * PIECE;
        long size = std::min(PIECE, (long)bytes - piece * PIECE);
        if (madvise(begin, size, POPULATE_WRITE) == 0) continue;
        if (errno != EINVAL) {
            fault = errno;
            continue;
        }
        for (long i = 0; i < size; i += PAGE) {  // an older kernel
            volatile char* byte = begin + i;
            *byte = *byte;
        }
    }
    return fault;
}
