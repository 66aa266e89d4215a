"""THE SEAM: what a backend can do (`base`), the executable specification (`reference`), and the
native CPU backend (`cpu`).
"""
