"""Steps an engine until its requests are finished."""
