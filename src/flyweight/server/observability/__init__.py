"""What is counted and said while the server runs: counts, metrics, log."""
