"""GUESSES: proposes tokens the target model may find it would have written.

`drafter` holds the protocol and its messages, `ngram` finds guesses in the text itself.
Invariant: a wrong guess costs time, never text.  A drafter sees token ids and blocks, never a
Sequence.
"""
