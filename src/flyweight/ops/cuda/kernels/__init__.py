"""Triton kernels; only the module that launches a kernel imports it."""
