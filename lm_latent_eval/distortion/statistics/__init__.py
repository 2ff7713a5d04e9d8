"""Statistics of log-probability errors: columns of nats in, curves out.

Source: LeBrun, Sordoni and O'Donnell (2022), sections 3 and 4.
"""

from lm_latent_eval.distortion.statistics.bins import Bins
from lm_latent_eval.distortion.statistics.error_curve import (
    ErrorCurve,
    JointHistogram,
    estimation_error,
)
from lm_latent_eval.distortion.statistics.productivity import (
    ProductivityCurve,
    productivity_stderr,
)
