"""Scenario files: parsing of keys and overrides, checks of values and combinations, and objects for names."""
