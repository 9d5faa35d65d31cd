"""Runs commands: finds the handler, checks the arguments, reports the outcome."""
