"""Decides which tokens are computed in a step, and what becomes of what was produced."""
