"""Files of quantised models: containers whose tensors are written in place, and the layouts of
several tensors a matrix.

Invariant: a layout's `encode` is the inverse of the parser of the same name in `weights.formats`.
Knows no method: what is written is given as `GroupedWeight` or floats.
"""
