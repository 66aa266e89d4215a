"""Admission: the queue, and the group of requests that one HTTP request runs."""
