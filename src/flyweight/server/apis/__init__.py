"""One file a dialect: what its bodies are, and what is answered."""
