"""Makes quantised models: a checkpoint in, a smaller one out, layer by layer from disk.

Invariant: no more than one layer of weights, with what was calibrated for it, is in memory; a file
under its final name is whole.  Knows no server and no command line.
"""
