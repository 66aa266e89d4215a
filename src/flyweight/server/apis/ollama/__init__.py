"""Ollama-compatible API."""
