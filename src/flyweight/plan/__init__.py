"""ADVISES: what this machine has (`machine`) and what a model will need of it (`memory`), before a tensor is read."""
