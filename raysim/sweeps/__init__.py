"""Sweeps: many runs from one file, each once, wherever there is room."""
