"""Statistics of log-probability errors: columns of nats in, curves and maps out.

Source: LeBrun, Sordoni and O'Donnell (2022), sections 3 and 4.
"""

from lm_latent_eval.distortion.statistics.bins import Bins
from lm_latent_eval.distortion.statistics.error_curve import (
    ErrorBin,
    ErrorCurve,
    estimation_error,
)
from lm_latent_eval.distortion.statistics.error_map import ErrorCell, ErrorMap, ErrorRow
from lm_latent_eval.distortion.statistics.error_trajectory import ErrorTrajectory
from lm_latent_eval.distortion.statistics.joint_histogram import JointHistogram
from lm_latent_eval.distortion.statistics.length_error import LengthError, LengthErrors
from lm_latent_eval.distortion.statistics.productivity import (
    ProductivityCurve,
    good_turing,
    potential_productivity,
    productivity_stderr,
)
from lm_latent_eval.distortion.statistics.sentence_perplexity import (
    mean_sentence_perplexity,
)
