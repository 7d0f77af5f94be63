"""Watches inside other people's training loops; each file needs the package of its name."""
