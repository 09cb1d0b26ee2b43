"""Trackers: the run folder, MLflow, TensorBoard, and Weights & Biases."""
