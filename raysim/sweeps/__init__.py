"""Sweeps: many runs from one file, several at a time, each of which is done only once."""
