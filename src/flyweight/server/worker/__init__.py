"""The process that computes: its loop, its pace, and whose fault a step was that raised."""
