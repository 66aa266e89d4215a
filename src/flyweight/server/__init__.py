"""The server: one process speaks HTTP, another one computes; plain messages cross a pipe.

`lifecycle/` starts and ends it, `app` joins the routes of `apis/` to what every request passes
(`transport/`), `admission/` queues requests, `constraints/` compiles schemas and grammars first.
`engine_client/` is the engine as seen from here, `pipe` the messages, `worker/` its process.
The import contract in pyproject.toml has the order.  Knows no array and no kernel.
"""
