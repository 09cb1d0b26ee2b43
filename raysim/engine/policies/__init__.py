"""Pure functions that decide: the cohort of a round, the placement of actors, the metrics. None of them acts."""
