"""Checks of a model before it serves: its files, and its packed weights."""
