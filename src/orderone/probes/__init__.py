"""Measurements, one a file; none knows the prediction that it tests."""
