"""The server, under vLLM's path."""
