"""Decides and writes the status of the project."""
