"""Text to token ids and back: one file per vocabulary kind, with one interface (`codec.Codec`).

Knows no other package: GGUF metadata arrives as a plain mapping, model files as a directory, and
the engine only ever sees the ids.
"""
