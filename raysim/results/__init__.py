"""Results of one run: its folder, readers, trackers such as MLflow, progress, closing table, and plots."""
