"""Methods, one paper per file. A file contains one `Algorithm`, which scenarios name by the file's name."""
