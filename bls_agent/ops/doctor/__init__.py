"""Checks a live Redis against the five protocols, without writing to it."""
