"""Distributional distortion, as LeBrun et al. (2022) report it."""

from lm_latent_eval.report.distortion.curves import (
    draw_latent,
    draw_random,
    draw_temperatures,
)
from lm_latent_eval.report.distortion.heat_map import draw_map
from lm_latent_eval.report.distortion.histograms import (
    draw_estimates,
    draw_language_check,
)
from lm_latent_eval.report.distortion.lengths import draw_lengths
from lm_latent_eval.report.distortion.productivity import draw_productivity
from lm_latent_eval.report.distortion.training import draw_amount, draw_training

__all__ = [
    "draw_amount",
    "draw_estimates",
    "draw_language_check",
    "draw_latent",
    "draw_lengths",
    "draw_map",
    "draw_productivity",
    "draw_random",
    "draw_temperatures",
    "draw_training",
]
