"""The ways to take commands from the control list; each docstring gives its guarantee."""
