"""Figures of runs: `raysim plot`."""
