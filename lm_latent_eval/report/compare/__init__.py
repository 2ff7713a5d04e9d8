"""Comparison of models on the same texts and questions."""

from lm_latent_eval.report.compare.analysis import power, rank, standings
from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.tasks import compare
from lm_latent_eval.report.compare.text import ERRORS, as_text, described, rows
