"""Data sets and their readers, partitions, and the transform of stored samples into network inputs."""
