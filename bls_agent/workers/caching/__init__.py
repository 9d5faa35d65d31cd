"""The function cache: results of functions, which many processes share in Redis."""
