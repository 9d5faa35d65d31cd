"""The function cache of contract 001: results of functions, shared by a fleet."""
