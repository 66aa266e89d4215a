"""Which servers of ours run on this machine, and whose processes they are."""
