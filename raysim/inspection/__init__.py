"""Inspection of a run: t-SNE of representations, gradient inversion of uploads, and HKS's trees of clusters."""
