"""The console's reads of Redis, once for any number of followers."""
