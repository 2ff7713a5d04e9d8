"""Compares models on the same texts, and says no more than the numbers hold."""

from lm_latent_eval.report.compare.comparison import (
    ChoiceComparison,
    Comparison,
    TextComparison,
    compare,
)
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.text import as_text, described, rows
