// What the library says of itself: the loader asks this before anything else.
#include "library.h"

// The hash of the sources it was compiled from; `build.source_hash` of the same instruction set.
TRIOLET_API const char* triolet_source_hash() { return TRIOLET_SOURCE_HASH; }
