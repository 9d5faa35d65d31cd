"""Checks a live Redis against the five protocols; only reads."""
