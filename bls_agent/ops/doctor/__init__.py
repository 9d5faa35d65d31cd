"""Checks a live Redis against the five contracts; only reads."""
