"""SERVES: one process speaks HTTP, another computes; plain messages cross a pipe between them.

`app` has the routes, `api/` one file per dialect, `client` the engine as the front end sees it,
`worker` the engine's process.  Knows no array and no kernel.
"""
