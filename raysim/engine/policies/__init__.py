"""Decisions and metrics, without Ray, files and logs: cohorts, placement of actors, virtual time, early stopping."""
