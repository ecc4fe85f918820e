"""The executor of the C++ kernels."""
