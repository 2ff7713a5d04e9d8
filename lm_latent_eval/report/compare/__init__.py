"""Comparison of models on the same texts and questions."""

from lm_latent_eval.report.compare.analysis import More, Ranking, more, rank
from lm_latent_eval.report.compare.comparison import (
    Asked,
    Comparison,
    TextComparison,
    compare,
)
from lm_latent_eval.report.compare.questions import QuestionComparison
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.text import ERRORS, as_text, described, rows
