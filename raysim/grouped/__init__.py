"""Clients of one architecture that are trained and tested by one call."""
