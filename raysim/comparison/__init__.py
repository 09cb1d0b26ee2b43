"""Comparing runs: what they have in common, what differs, and what of their results a reader may believe."""
