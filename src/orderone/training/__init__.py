"""The training loop: handed a model, an optimizer, batches and observers."""
