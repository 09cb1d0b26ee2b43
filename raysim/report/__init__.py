"""Reading run folders, and the output of one run: progress display, closing table, plots; the style of all figures."""
