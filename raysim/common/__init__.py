"""Code for every package: error classes, text, folders, records. Needs only NumPy and psutil."""
