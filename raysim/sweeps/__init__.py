"""Sweeps: many runs from one file, each done once, several at a time."""
