"""The console log: writing records from any thread, and reading them."""
