"""Long runs: one file for each subject, each a function with a number of rounds.

The tests run them with small numbers; ``python -m tests.soak.<subject> [number]`` with
large ones.
"""
