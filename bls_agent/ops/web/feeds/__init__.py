"""What the console reads of Redis, once for any number of followers."""
