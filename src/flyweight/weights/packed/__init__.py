"""KEEPS packed weights between starts, in files that are read at once.

Invariant: a kept file is used only for the very model files, plan and packing it was made from; a
damaged one is dropped and made again, and a folder that cannot be written costs a note, never a
load.  Knows no container and no kernel.
"""
