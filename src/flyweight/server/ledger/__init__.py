"""What was asked for, and what is really active."""
