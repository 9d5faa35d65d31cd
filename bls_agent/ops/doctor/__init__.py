"""Checks a live Redis against the five contracts; only ever reads."""
