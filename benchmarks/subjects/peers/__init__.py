"""Other packages that run commands out of Redis, each in an environment of its own.

They import nothing of ours but ``acting.py`` and ``work.py``.
"""
