"""Models and proposals have the methods that inference calls, with these types.

Nothing here runs. ``mypy`` reads it with the package, and says which model lacks a
method, or takes another's encoding, latents or state.
"""

from __future__ import annotations

from typing import TypeVar

from lm_latent_eval.latent import LatentLM, Latents, LeftToRight, Proposal, State
from lm_latent_eval.models.entitynlm.modeling import EntityNLM, EntityNLMProposal
from lm_latent_eval.models.kglm.modeling import KGLM, KGLMProposal
from lm_latent_eval.models.lda.modeling import LDA, FittedTopics, LeftToRightTopics
from lm_latent_eval.models.lrlm import modeling as lrlm
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.nklm.modeling import NKLM, NKLMProposal
from lm_latent_eval.models.recurrent_lm import RecurrentLM
from lm_latent_eval.models.rnng.crf import CRFProposal
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.text.batch import TokenBatch

E = TypeVar("E")
Z = TypeVar("Z", bound=Latents)
S = TypeVar("S", bound=State)


def model(p: LatentLM[TokenBatch, E, Z]) -> None:
    """Take p(x, z)."""


def proposal(q: Proposal[TokenBatch, E, Z]) -> None:
    """Take q(z | x)."""


def left_to_right(either: LeftToRight[TokenBatch, E, Z, S]) -> None:
    """Take what unfolds."""


def kglm(p: KGLM, q: KGLMProposal) -> None:
    """See ``models.kglm``; the others likewise."""
    model(p)
    left_to_right(p)
    proposal(q)
    left_to_right(q)


def entitynlm(p: EntityNLM, q: EntityNLMProposal) -> None:
    model(p)
    left_to_right(p)
    proposal(q)
    left_to_right(q)


def rnng(p: RNNG, q: WordByWord, whole: CRFProposal) -> None:
    model(p)
    left_to_right(p)
    proposal(q)
    left_to_right(q)
    proposal(whole)


def lda(p: LDA, q: LeftToRightTopics, whole: FittedTopics) -> None:
    model(p)
    left_to_right(p)
    proposal(q)
    left_to_right(q)
    proposal(whole)


def of_relations(p: LRLM, q: lrlm.Adapted, whole: lrlm.Posterior) -> None:
    model(p)
    left_to_right(p)
    proposal(q)
    left_to_right(q)
    proposal(whole)


def nklm(p: NKLM, q: NKLMProposal) -> None:
    model(p)
    left_to_right(p)
    proposal(q)
    left_to_right(q)


def recurrent(p: RecurrentLM) -> None:
    model(p)
    left_to_right(p)
