"""Methods, one paper per file. A file contains one `Algorithm`; scenarios name it by the name of its file."""
