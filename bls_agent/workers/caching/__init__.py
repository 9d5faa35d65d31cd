"""The function cache: results of functions, shared by a fleet."""
