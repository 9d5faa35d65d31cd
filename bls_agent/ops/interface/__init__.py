"""Describes the commands of a project for programs in other languages and for Python."""
