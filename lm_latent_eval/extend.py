"""The public interface for other packages: models, checkpoints, devices, laws.

A name here keeps its meaning from one release to the next, or CHANGELOG.md says how it
changed. To load and score checkpoints takes ``lm_latent_eval`` alone, and the formulas
for numbers of your own are in ``lm_latent_eval.estimators``; other modules may move.
"""

from __future__ import annotations

from lm_latent_eval.devices import sent, sent_uniforms, wide_zeros, widened
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference import Estimator, estimator_named
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.latent import (
    Beam,
    Draws,
    LatentLM,
    Normalization,
    Proposal,
    Uniforms,
)
from lm_latent_eval.manifest import verify as verify_manifest
from lm_latent_eval.manifest import write as write_manifest
from lm_latent_eval.models.checkpoint import save as save_checkpoint
from lm_latent_eval.models.pretrained import (
    CheckedConfig,
    Pretrained,
    WordsConfig,
    value,
)
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.models.real_latents import NormalProposal, RealStep, RealStepLM
from lm_latent_eval.models.stepwise import Step, StepLM
from lm_latent_eval.scoring.interface import (
    Answer,
    GenerationOptions,
    Query,
    TextModel,
    TextScorer,
)
from lm_latent_eval.testing import Case, LawError, estimator_laws, laws
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.encoder import ByteEncoder, Encoder, SubwordEncoder
from lm_latent_eval.text.words import END, PADDING, START, UNKNOWN, WordTokenizer
from lm_latent_eval.values import Whole

__all__ = [
    "END",
    "PADDING",
    "START",
    "UNKNOWN",
    "Answer",
    "Beam",
    "Bound",
    "ByteEncoder",
    "Case",
    "CheckedConfig",
    "Draws",
    "Encoder",
    "Estimate",
    "Estimator",
    "GenerationOptions",
    "LatentLM",
    "LawError",
    "NoLatents",
    "NormalProposal",
    "Normalization",
    "Pretrained",
    "Proposal",
    "Query",
    "RealStep",
    "RealStepLM",
    "Step",
    "StepLM",
    "SubwordEncoder",
    "TextModel",
    "TextScorer",
    "Texts",
    "TokenBatch",
    "Uniforms",
    "Whole",
    "WordTokenizer",
    "WordsConfig",
    "estimator_laws",
    "estimator_named",
    "laws",
    "save_checkpoint",
    "sent",
    "sent_uniforms",
    "value",
    "verify_manifest",
    "wide_zeros",
    "widened",
    "write_manifest",
]
