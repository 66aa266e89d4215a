"""Speculative decoding: proposes draft tokens, which the target model verifies.

`drafter` holds the protocol and its messages, `ngram` finds drafts in the text itself, `model`
draws them from a smaller model.
Invariant: a wrong draft costs time, never text.  A drafter sees token ids and blocks, never a
Sequence.
"""
