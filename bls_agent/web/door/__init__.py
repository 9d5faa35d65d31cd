"""What every request passes, and who may: decided mostly without I/O."""
