"""Writing a run from its beginning to its end, without ever waiting."""
