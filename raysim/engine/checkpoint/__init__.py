"""The state of a run on disk: file format, storage, checkpoints, recovery."""
