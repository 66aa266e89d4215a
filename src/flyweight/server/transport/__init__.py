"""What every request passes on its way in and out: protocol, guard, door, event streams, errors."""
