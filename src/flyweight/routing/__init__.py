"""Which replica of a model gets a request: by the prefix that its cache holds, within a bound of
load (`policies`), and the work that replicas have (`router`).
"""
