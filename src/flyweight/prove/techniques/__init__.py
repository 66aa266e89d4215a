"""One technique a file: what it is, its workload, and how it is turned off."""
