"""Kernels at infinite width, [DYZ23]: G, F, Θ by block, with standard errors."""
