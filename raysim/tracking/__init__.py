"""Trackers: the run folder, MLflow, TensorBoard, Weights & Biases."""
