"""What data and training agree on about the words to be predicted."""

IGNORED = -100
"""Target of a position that carries no loss (torch's own convention)."""
