"""Computes: model families, written once against `ops`.  A family is a spec and a weight plan; the
arithmetic is in `decoder`.
"""
