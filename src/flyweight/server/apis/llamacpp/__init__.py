"""llama-server-compatible API."""
