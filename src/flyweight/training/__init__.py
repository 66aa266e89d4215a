"""Training of draft heads on a model's own hidden states.

`states` collects them through the engine's taps, `medusa` and `eagle` train on them with torch (the
extra `train`), `folder` writes what is published.  Invariant: the model itself is never changed.
"""
