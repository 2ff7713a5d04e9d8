"""Comparison of models on the same texts and questions."""

from lm_latent_eval.report.compare.analysis import (
    More,
    Ranking,
    more,
    rank,
    standings,
)
from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.tasks import Asked, compare
from lm_latent_eval.report.compare.text import ERRORS, as_text, described, rows
