"""The process that computes: its loop, the budget of its steps, and fault isolation."""
