"""Rounds: the loop, the backends that run it, and what they need."""
