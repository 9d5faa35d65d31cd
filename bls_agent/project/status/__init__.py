"""How the project is: who says so, how it is decided, and how it reaches its key."""
