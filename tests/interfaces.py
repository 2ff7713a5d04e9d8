"""Models and proposals have the methods that inference calls, with these types.

Nothing here runs. ``mypy`` reads it with the package, and says which model lacks a
method, or takes another's encoding, latents or state.
"""

from __future__ import annotations

from typing import TypeVar

from lm_latent_eval.latent import LatentLM, Latents, LeftToRight, Proposal, State
from lm_latent_eval.models.entitynlm.modeling import EntityNLM, EntityNLMProposal
from lm_latent_eval.models.kglm.modeling import KGLM, KGLMProposal
from lm_latent_eval.models.lda.modeling import LDA, FittedTopics
from lm_latent_eval.models.lrlm.modeling import LRLM, Adapted, Posterior
from lm_latent_eval.models.nklm.modeling import NKLM, NKLMProposal
from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel
from lm_latent_eval.models.rnng.crf import CRFProposal
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.stepwise import ModelProposal
from lm_latent_eval.text.batch import TokenBatch

E = TypeVar("E")
Z = TypeVar("Z", bound=Latents)
S = TypeVar("S", bound=State)


def unfolding(
    p: LatentLM[TokenBatch, E, Z], same: LeftToRight[TokenBatch, E, Z, S]
) -> None:
    """Take p(x, z), twice: no type is both of what it has to be."""


def stepwise(
    q: Proposal[TokenBatch, E, Z], same: LeftToRight[TokenBatch, E, Z, S]
) -> None:
    """Take q(z | x) of steps, twice."""


def whole(q: Proposal[TokenBatch, E, Z]) -> None:
    """Take q(z | x) of whole texts."""


def models(
    kglm: KGLM,
    entitynlm: EntityNLM,
    rnng: RNNG,
    lda: LDA,
    lrlm: LRLM,
    nklm: NKLM,
    recurrent: LSTMLanguageModel,
) -> None:
    """See the modules below ``models``."""
    unfolding(kglm, kglm)
    unfolding(entitynlm, entitynlm)
    unfolding(rnng, rnng)
    unfolding(lda, lda)
    unfolding(lrlm, lrlm)
    unfolding(nklm, nklm)
    unfolding(recurrent, recurrent)


def proposals(
    kglm: KGLMProposal,
    entitynlm: EntityNLMProposal,
    rnng: WordByWord,
    lda: ModelProposal,
    lrlm: Adapted,
    nklm: NKLMProposal,
) -> None:
    stepwise(kglm, kglm)
    stepwise(entitynlm, entitynlm)
    stepwise(rnng, rnng)
    stepwise(lda, lda)
    stepwise(lrlm, lrlm)
    stepwise(nklm, nklm)


def of_whole_texts(rnng: CRFProposal, lda: FittedTopics, lrlm: Posterior) -> None:
    whole(rnng)
    whole(lda)
    whole(lrlm)
