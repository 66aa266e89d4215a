"""From what a caller passes to a checked request, and from events to results."""
