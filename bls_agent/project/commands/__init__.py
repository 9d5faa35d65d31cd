"""From a message to an outcome: registration, arguments, running, slots."""
