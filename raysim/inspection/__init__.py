"""Inspection of runs: `raysim plot`, t-SNE of representations, gradient inversion of uploads, trees of HKS."""
