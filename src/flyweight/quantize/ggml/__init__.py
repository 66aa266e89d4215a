"""Writes GGUF: encoders of its types, importance matrices, recipes, and the container itself.

Invariant: `weights` reads back what is written here; a file's layout is known before its first
tensor is encoded.
"""
