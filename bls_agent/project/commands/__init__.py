"""Everything from a message to its outcome: handlers, arguments, workers."""
