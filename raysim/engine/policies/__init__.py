"""Pure functions for decisions, without side effects: cohorts, placement of actors, virtual time, metrics."""
