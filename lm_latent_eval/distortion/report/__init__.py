"""Figures and tables of distributional distortion, after LeBrun et al. (2022)."""

from lm_latent_eval.distortion.report.curves import (
    draw_amount,
    draw_latent,
    draw_lengths,
    draw_productivity,
    draw_random,
    draw_temperatures,
    draw_training,
)
from lm_latent_eval.distortion.report.maps import (
    draw_estimates,
    draw_language_check,
    draw_map,
)
