"""READS: model files to canonical row ranges, and those into the backend's weights, slot by slot.

Invariant: every size, count and offset of a file is checked against the file before it is used, so
a damaged or hostile file ends in a `CheckpointError` and nothing else. This room does not know
models, kernels or text.
"""
