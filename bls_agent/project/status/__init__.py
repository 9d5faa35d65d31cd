"""The status of the project: how it is decided, and how it reaches its key."""
