"""Anthropic-compatible API."""
