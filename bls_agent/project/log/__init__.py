"""The log of a project: encodes and writes records, and finds records in the list."""
