"""Contract 000: the asset library. So far: what a doctor holds against its keys."""
