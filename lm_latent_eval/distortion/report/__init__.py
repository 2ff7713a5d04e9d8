"""Figures and tables of distributional distortion, after LeBrun et al. (2022)."""
