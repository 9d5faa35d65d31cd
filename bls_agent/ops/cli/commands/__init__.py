"""The commands; ``COMMANDS`` in ``app.py`` lists the module of each command."""
