"""What `raysim new` writes: files that run as they are, to be changed."""
