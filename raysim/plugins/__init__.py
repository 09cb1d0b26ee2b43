"""The user's own code, from files and entry points: find, read, send, import and call it."""
