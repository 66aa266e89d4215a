"""Answers the rows of a file, offline: in this process, in replicas on Ray, or in an Apache Beam
pipeline.

Invariant: the text of a row is the same in all three, and no row ends the job.
"""
