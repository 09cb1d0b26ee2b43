"""The Python interface to runs: start one, open one, read its results, resume it, look at its clients."""
