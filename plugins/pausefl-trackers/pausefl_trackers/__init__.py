"""Observers that log a run to a tracker of experiments: MLflow, TensorBoard, Weights & Biases, trackio."""
