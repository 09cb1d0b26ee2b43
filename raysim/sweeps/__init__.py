"""Sweeps: many runs from one file, several at a time. A finished run is not repeated."""
