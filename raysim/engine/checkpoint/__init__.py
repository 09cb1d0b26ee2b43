"""Checkpoints of a run, in a folder or at an address: file format, storage, manifests, and times of saving."""
