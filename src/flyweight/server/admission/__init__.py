"""Which requests run: the queue, and the choices of one HTTP request."""
