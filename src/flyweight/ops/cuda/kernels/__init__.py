"""Triton kernels.  A kernel is its own file's secret: only the module that launches it imports it."""
