"""Corpora, tokenisers, batches with a saved state, span denoising, and image sets."""
