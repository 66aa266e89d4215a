"""Several engine processes that serve one model, and the choice of one for each request."""
