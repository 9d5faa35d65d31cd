"""Receives commands in one of several modes.

The docstring of each receiver describes which commands may be lost or repeated.
"""
