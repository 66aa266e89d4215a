"""A peer's side of a measurement, run by whichever interpreter has the peer; see peer.py."""
