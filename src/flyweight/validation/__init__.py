"""Checks of values from callers and from untrusted files."""
