"""The ways to take commands; the docstring of each receiver states its guarantee."""
