"""Blocks of the prefix cache sent from one server to another: protocol, server and client."""
