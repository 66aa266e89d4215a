"""TELLS APART: what of a growing answer is content, what reasoning, what calls a tool.

Invariant: time is linear in the text, and the joined result does not depend on how it was cut into
pieces.  Knows no HTTP and no engine.
"""
