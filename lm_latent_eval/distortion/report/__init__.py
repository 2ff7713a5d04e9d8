"""Figures and tables of distributional distortion, after LeBrun et al. (2022)."""

from lm_latent_eval.distortion.report.curves import (
    draw_latent,
    draw_lengths,
    draw_productivity,
    draw_random,
    draw_temperatures,
)
from lm_latent_eval.distortion.report.heat_map import draw_map
from lm_latent_eval.distortion.report.histograms import (
    draw_estimates,
    draw_language_check,
)
from lm_latent_eval.distortion.report.training import draw_amount, draw_training
