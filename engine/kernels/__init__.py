"""Kernels in C++ for CPUs: their build, their choice by processor, and the calls into them."""
