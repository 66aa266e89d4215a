"""Starts, drains and ends the server; knows the servers that run on this machine."""
