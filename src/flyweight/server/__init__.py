"""SERVES: one process speaks HTTP, another computes; plain messages cross a pipe between them.

`run` and `life` begin and end it; `routes` has every route, `api/` one file per dialect, `front`
what they share.  `http/` is what each request passes on its way in and out; `remote/` is the engine
as seen from here, `pipe` what is said to it, `worker/` its process.  Knows no array and no kernel.
"""
