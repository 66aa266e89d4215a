"""vLLM's engine arguments: which are understood, what each means here, which are refused and why.

Invariant: one table for `LLM(...)`, `EngineArgs` and `flyweight serve`.  An argument becomes a
setting, is listed among the effective settings, or is refused by name.  Knows no HTTP and no
command line.
"""
