"""The commands of the command line; ``COMMANDS`` in ``app.py`` has their modules."""
