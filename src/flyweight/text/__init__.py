"""SPEAKS: text to token ids and back, one file per vocabulary kind behind one seam (`codec.Codec`).

Neighbours are unknown here: GGUF metadata arrives as a plain mapping, model files as a directory,
and the engine only ever sees the ids.
"""
