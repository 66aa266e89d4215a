"""Measures quality: the perplexity of a text, and how far a model's predictions are from another's.

Invariant: every figure is of tokens that the engine scored, each once, with what was measured
stated with it.  Changes nothing about how the engine computes.
"""
