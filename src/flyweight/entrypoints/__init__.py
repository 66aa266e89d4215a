"""Commands under the names vLLM gave its own, so that scripts written for it run as they are.

Invariant: each does what the command of ours does that it names.
"""
