"""MEASURES speed: the engine's, the machine's limits beside it, and peers' on the same file.

Invariant: a figure stands beside the limits sampled just before and after it, and beside what else
ran; peers run in processes of their own, in turn.  Changes nothing about how the engine computes.
"""
