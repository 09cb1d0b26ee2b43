"""The user's own code: its files and entry points, found, read, sent, imported and called."""
