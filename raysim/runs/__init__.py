"""`Run`: start, resume, open and verify runs. Also `--dry-run`, `raysim doctor`, run identity and signals."""
