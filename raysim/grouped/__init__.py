"""Training and testing of several clients of one architecture by one call."""
