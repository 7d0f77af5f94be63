"""Keep transformers of order one: before, during and after training."""

__version__ = "0.1.0"
