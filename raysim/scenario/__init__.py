"""Scenario files: parse keys and overrides, check values and combinations, and create the objects that are named."""
