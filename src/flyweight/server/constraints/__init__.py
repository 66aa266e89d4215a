"""Checks whether constraints compile, in processes that may be killed."""
