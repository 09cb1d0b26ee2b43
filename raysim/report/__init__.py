"""Functions that read run folders, the output of one run (progress, closing table, plots), and the style of figures."""
