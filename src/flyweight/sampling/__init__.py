"""From options to the columns `ops.sample` reads, and from samples to accepted tokens.

`arrays` lays the rows' options out as flat arrays, `verify` judges drafts.  Invariant: everything
is per row; nothing depends on which rows share a step.  Knows no models, caches or
scheduler.
"""
