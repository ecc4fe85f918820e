// What every file of the library shares: how a function is exported.
#pragma once
#include <cstdint>

#define TRIOLET_API extern "C" __attribute__((visibility("default")))
