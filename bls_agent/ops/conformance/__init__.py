"""Judges whether a program follows a protocol, by the vectors in ``docs/vectors``."""
