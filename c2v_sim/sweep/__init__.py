"""A grid of runs as processes, and the tables of what they came to."""
