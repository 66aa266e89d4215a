"""Plans before a tensor is read: what this machine has (`machine`), what a model will need of it
(`memory`), and what a step needs of that (`step`).
"""
