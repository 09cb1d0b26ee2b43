"""Used by every package: error classes, text, folders, shared records. Standard library, NumPy and psutil only."""
