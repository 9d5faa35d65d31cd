"""From a message to an outcome: registration, arguments, the run, the slots."""
