"""Keeping a heartbeat alive: who owns its key, when it is written, what is said meanwhile."""
