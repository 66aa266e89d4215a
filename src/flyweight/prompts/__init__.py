"""Prompts: what breaks the prefix cache, and templates that pack a context into a token budget."""
