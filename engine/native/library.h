// What every file of the library shares: how a function is exported, and the C types of the binding.
#pragma once
#include <cstdint>

#define TRIOLET_API extern "C" __attribute__((visibility("default")))
