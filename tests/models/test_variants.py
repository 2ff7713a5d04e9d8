"""The laws hold of models as originals have them, too, and of other graphs and weights.

``tests/test_laws.py`` holds the models as this package makes them to the same laws.
What is computed at once is bounded, and work that is cut moves no number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lm_latent_eval import testing
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel
from lm_latent_eval.models.rnng.networks import GenerativeModel, SpanScores
from lm_latent_eval.testing.model_laws import numbers_of
from tests import tiny_models
from tests.models.nklm import tiny as tiny_nklm
from tests.models.rnng import reference as tiny_rnng
from tests.models.rnng.reference import every_prefix
from tests.test_laws import OF_ENGINE, PAIRS, TINY_MODELS, Tiny, listed
from tests.watching import watch


def variant(name: str, build: Callable[..., Any], **changes: Any) -> Tiny:
    return replace(TINY_MODELS[name], build=build, **changes)


FEW = partial(tiny_models.kglm, tiny_models.plain_graph(), spread=0.5)


SOME = ("adapted", "peeking", "prior")


def loose_kglm() -> KGLM:
    """A KGLM that leaves mass on what cannot be, as the original does."""
    kglm = FEW()
    kglm.config.only_possible = False
    return kglm


ORIGINAL_RNNG = partial(tiny_rnng.tiny, only_possible=False, never_uttered=[])
WITHOUT_ENDS = {
    "latents": lambda model, text: every_prefix(len(text)),
    "proposals": ("adapted", "prior"),
    "reads_on": (),
    "goes_on": True,
}
WHOLE_TREES = {
    "latents": lambda model, text: tiny_rnng.trees(
        [tiny_rnng.every_tree(len(text))], "no_eos"
    ),
    "reads_on": ("crf", "adapted", "prior"),
    "ends": False,
}
EXACT, LOOSE = Normalization.ONE, Normalization.BELOW_ONE
VARIANTS = {
    "kglm-few-edges": (variant("kglm", FEW, proposals=("adapted", "prior")), EXACT),
    # Proposals that read on or are told less go by the same scores.
    "kglm-loose": (variant("kglm", loose_kglm, proposals=SOME), LOOSE),
    "nklm-loose": (
        variant("nklm", partial(tiny_nklm.nklm, only_possible=False)),
        LOOSE,
    ),
    "rnng-loose": (variant("rnng", ORIGINAL_RNNG), LOOSE),
    "rnng-endless": (
        variant(
            "rnng",
            partial(tiny_rnng.tiny, kind=tiny_rnng.OfPrefixes, sentence_ends=False),
            **WITHOUT_ENDS,
        ),
        None,
    ),
    "rnng-trees": (
        variant("rnng", partial(tiny_rnng.tiny, sentence_ends=False), **WHOLE_TREES),
        None,
    ),
    **{
        f"{name}-spelled": (replace(TINY_MODELS[name], spelled=True), None)
        for name in ("entitynlm", "kglm", "lrlm", "nklm", "rnng")
    },
}
"""Name -> how to build one, and what its texts add up to (None: of one length, or of
spellings that are some of all)."""


def owed(name: str) -> list[testing.Law]:
    """Return the laws of sums and shapes, and of means of estimates.

    Predictions leave out what is lost, and do not know that a text is whole, so they
    are no ratios of what is not. Spellings move what texts add up to, and nothing else.
    """
    tiny, normalization = VARIANTS[name]
    listed, all_said = testing.laws(tiny.case()), normalization is EXACT
    if tiny.spelled:
        return [law for law in listed if str(law).startswith("bounds_are_true")]
    left_out = () if all_said or name == "rnng-endless" else ("predictions",)
    return [law for law in listed if not str(law).startswith(left_out)]


TESTED = {*OF_ENGINE, "company_moves_no_weight", "reading_once_is_reading_again"}
"""What no graph and no lost mass has a say in: by variants nightly."""
LAWS = [law for name in VARIANTS for law in listed(name, owed(name), TESTED)]


@pytest.mark.parametrize("law", LAWS)
def test_it_keeps_the_law(law):
    law()


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_lost_is_said(name):
    tiny, normalization = VARIANTS[name]
    case = tiny.case()
    lost = 1 - case.total()
    if normalization is not None:
        assert case.model.normalization is normalization
        assert (lost > 1e-3) == (normalization is LOOSE)
    assert abs(lost) < 1e-10 or lost > 1e-3 or tiny.spelled


# -- work that is cut ------------------------------------------------------------------

ROWS = 2
"""Scores of all words, of spans or of stacks that are held at once."""
LIMITS = {
    "inference.ragged.AT_ONCE": 12,
    "models.lrlm.network.AT_ONCE": 5,
    "models.rnng.joint.STACKS_AT_ONCE": 2,
    "models.rnng.networks.TABLE": 12,
    "models.rnng.networks.SPANS_AT_ONCE": 2,
}
CUT = ("entitynlm", "lrlm", "lstm", "nklm", "rnng")
"""Models whose work is cut by them. KGLM is tested with its own, of a larger graph."""
WATCHED = {
    "lstm": (LSTMLanguageModel, "log_prob"),
    "rnng": (GenerativeModel, "log_words"),
    "rnng crf": (SpanScores, "_score"),
}
"""What gives a row for each that it is asked for."""


@pytest.mark.parametrize(("name", "which"), [p for p in PAIRS if p[0] in CUT])
def test_parts_move_no_number(name, which, monkeypatch):
    case, rows = TINY_MODELS[name].case(), []
    if watched := WATCHED.get(f"{name} {which}", WATCHED.get(name)):
        rows = watch(monkeypatch, *watched, lambda result, *_: len(result))
    whole = numbers_of(case, which)
    assert not watched or max(rows) > ROWS, "premise: there is something to cut"
    rows.clear()
    for place, size in LIMITS.items():
        monkeypatch.setattr(f"lm_latent_eval.{place}", size)
    for what, number in numbers_of(case, which).items():
        torch.testing.assert_close(number, whole[what], rtol=0, atol=1e-10, msg=what)
    assert not watched or max(rows) <= ROWS
