"""What is said of tasks and how far things are."""
