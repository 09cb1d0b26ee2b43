"""The user's own code, from files and entry points: finding, reading, sending, importing and calling it."""
