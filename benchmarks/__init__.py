"""Figures of bls-agent beside a bare loop that does the same work.

``python -m benchmarks`` runs them; docs/performance.md shows them and says how to read
them. Figures (``figures/``) decide what is compared, subjects (``subjects/``) are what
is measured, each in a process of its own.
"""
