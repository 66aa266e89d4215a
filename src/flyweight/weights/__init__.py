"""Reads model files as canonical row ranges, and loads them into the backend's weights by slot.

Invariant: every size, count and offset of a file is checked against the file before it is used, so
a damaged or hostile file ends in a `CheckpointError` and nothing else. Knows no
models, kernels or text.
"""
