"""The rules of the doctor, one module for each protocol."""
