"""What is measured: each module is run in a process of its own by ``stage.py``."""
