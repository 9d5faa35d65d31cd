"""Judges any program that takes part in a contract by the vectors of `docs/vectors`."""
