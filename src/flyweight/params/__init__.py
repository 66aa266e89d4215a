"""Parameters of a request next to sampling: constraints, repetition, tasks."""
