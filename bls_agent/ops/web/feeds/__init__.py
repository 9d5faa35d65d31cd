"""Reads Redis for the console, once for all pages and programs that follow the data."""
