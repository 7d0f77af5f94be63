"""Checkpoint series: sources, one-pass geometry, growth laws."""
