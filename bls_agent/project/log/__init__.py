"""The console log: from any thread into the list, and out of it again."""
