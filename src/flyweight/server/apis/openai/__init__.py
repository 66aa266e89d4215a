"""OpenAI-compatible API."""
