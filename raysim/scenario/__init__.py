"""Scenario files: parses keys and overrides, checks values and combinations, and creates the objects that they name."""
