"""Measurements; run them as modules from the repository's root."""
