"""Parts of `bench/gpu.py`, which needs a GPU, torch and Triton, and no network."""
