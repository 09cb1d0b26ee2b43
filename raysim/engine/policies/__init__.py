"""Decisions that need no Ray, files or logs: cohorts, placement of actors, virtual time, early stopping."""
