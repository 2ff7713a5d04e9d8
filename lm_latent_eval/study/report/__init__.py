"""Figures and tables of a study, after Logan et al. (2020)."""
