"""The `raysim` command."""
