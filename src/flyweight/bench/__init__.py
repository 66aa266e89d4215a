"""Measures speed: the engine's, the machine's limits, and that of other engines on the same file.

Invariant: a figure is reported with the limits sampled just before and after it, and with what else
ran; peers run in processes of their own, in turn.  Changes nothing about how the engine computes.
"""
