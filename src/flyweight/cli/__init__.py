"""The terminal: one file per command.  Knows how to show things and what exit codes mean; decides
nothing else.
"""
