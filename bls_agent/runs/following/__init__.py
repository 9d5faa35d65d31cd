"""Following runs: any number of followers over one waiting connection."""
