"""The process that computes: its loop and the budget of its steps."""
