"""The engine process: its loop and the budget of its steps."""
