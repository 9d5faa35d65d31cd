"""The ways to take commands; the docstring of each receiver gives its guarantee."""
