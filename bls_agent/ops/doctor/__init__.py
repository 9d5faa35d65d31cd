"""Checks the keys and values of a live Redis against the five protocols; only reads."""
