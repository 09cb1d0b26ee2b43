"""The round loop, its backends, and the records, policies and checkpoints that they use."""
