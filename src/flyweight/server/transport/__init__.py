"""What every request passes: connections, guard, event streams, error replies, the request log."""
