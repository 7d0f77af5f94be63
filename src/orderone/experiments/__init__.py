"""Experiments: where predictions, training and measurements meet; one file a figure or table."""
