"""The server: one process handles HTTP, another one computes; plain messages go between them.

`lifecycle/` starts and ends it; `app` joins the routes of `apis/` to what every request passes
(`transport/`); `admission/` queues requests; `constraints/` compiles schemas and grammars first.
`engine_client` is the engine as this process sees it, `pipe` the messages, `worker/` the engine's
process.  The import contract in pyproject.toml has the order.  Knows no array and no kernel.
"""
