"""The rules about each protocol, one module for each."""
