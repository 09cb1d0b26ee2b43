"""`Run`: start, resume, open and verify runs; `--dry-run` and `raysim doctor`; the identity of a run, and signals."""
