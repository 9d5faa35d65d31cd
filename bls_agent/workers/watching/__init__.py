"""Finding the workers of a fleet and telling what changes."""
