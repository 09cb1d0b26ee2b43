"""Studies: sweeps and tuning of many runs from one file, and their comparison as tables, notes and plots."""
