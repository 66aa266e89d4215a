"""LOADS a server over HTTP and measures what its clients see, in vLLM's words.

Invariant: what is sent is decided before the clock starts, from the seed alone, so that two servers
get the same load; a figure comes from when bytes arrived here, never from what a server says of
itself, except for its count of tokens.  Knows no engine: any server of these APIs will do.
"""
