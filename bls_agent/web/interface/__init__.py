"""The HTTP interface of contract 002, in JSON."""
