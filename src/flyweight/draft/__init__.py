"""Speculative decoding: proposes draft tokens, which the target model verifies.

`drafter` holds the protocol and its messages, `methods` makes a drafter from a configuration; the
others are drafters, a module each.
Invariant: a wrong draft costs time, never text.  A drafter sees token ids and blocks, never a
Sequence.
"""
