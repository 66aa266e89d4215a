"""Splits a growing answer into content, reasoning and tool calls.

Invariant: time is linear in the text, and the joined result does not depend on how it was cut into
pieces.  Knows no HTTP and no engine.
"""
