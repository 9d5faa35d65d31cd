"""The console log: from any thread into the list, and read again."""
