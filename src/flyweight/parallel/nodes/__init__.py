"""A model over several nodes: how they join, compare what they are, and notice a loss."""
