"""Counters, metrics, the log, and the effective configuration."""
