"""Stagewise development (arXiv 2402.02364): recipes, figures and claims. See `study`."""
