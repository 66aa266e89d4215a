"""Parts of `bench/soak.py`."""
