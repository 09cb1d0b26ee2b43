"""Comparison of runs: measures, intervals over seeds, differences between variants, and notes on their fairness."""
