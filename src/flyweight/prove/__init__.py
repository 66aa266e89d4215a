"""Measures each technique on this machine, off and on: speed, memory and equality of outputs."""
