"""The status of the project: how it is decided, and how it is written."""
