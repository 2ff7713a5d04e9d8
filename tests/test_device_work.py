"""What models ask a device for does not grow: counted work, never seconds.

Two texts of four words under four samples, of trainings a step; a fifth more is let
pass, since which words and latents share their work follows from draws. When something
gets cheaper, lower its line: ``python -m tests.device_work`` prints the table anew.
"""

from __future__ import annotations

import pytest

from tests.device_work import WORDS, counted, learner_epoch, of_models, runs
from tests.test_laws import TINY_MODELS

MORE = 1.2
COSTS = {
    "entitynlm mixed": (2234, 16),
    "entitynlm dpf": (4979, 27),
    "entitynlm is": (1166, 9),
    "entitynlm contexts": (1282, 10),
    "entitynlm beam": (1093, 10),
    "entitynlm smc": (2571, 7),
    "entitynlm ais": (2108, 15),
    "kglm mixed": (3343, 19),
    "kglm dpf": (4481, 36),
    "kglm is": (2428, 12),
    "kglm contexts": (2507, 15),
    "kglm beam": (1827, 13),
    "kglm smc": (4530, 11),
    "kglm ais": (4569, 21),
    "lda ais": (1601, 1),
    "lda l2r": (422, 1),
    "lda chib": (4340, 1),
    "lda mixed": (814, 1),
    "lda dpf": (1755, 1),
    "lda is": (433, 1),
    "lda beam": (453, 1),
    "lda smc": (957, 6),
    "lrlm exact": (196, 3),
    "lrlm mixed": (430, 4),
    "lrlm dpf": (515, 4),
    "lrlm is": (378, 4),
    "lrlm contexts": (662, 7),
    "lrlm beam": (375, 4),
    "lrlm smc": (1521, 7),
    "lstm exact": (114, 4),
    "lstm is": (102, 4),
    "lstm contexts": (129, 4),
    "lstm beam": (98, 4),
    "nklm mixed": (2752, 14),
    "nklm dpf": (3597, 25),
    "nklm is": (1143, 7),
    "nklm contexts": (1411, 8),
    "nklm beam": (979, 7),
    "nklm smc": (2152, 7),
    "rnn exact": (129, 7),
    "rnn is": (117, 7),
    "rnn contexts": (147, 7),
    "rnn beam": (113, 7),
    "rnng mixed": (2307, 12),
    "rnng dpf": (3501, 21),
    "rnng is": (907, 6),
    "rnng contexts": (782, 6),
    "rnng beam": (904, 6),
    "rnng smc": (1424, 7),
    "rnng ais": (3323, 12),
    "srnn exact": (72, 2),
    "tokens canonical": (179, 12),
    "tokens exact": (808, 33),
    "tokens beam": (650, 29),
    "tokens is": (571, 27),
    "tokens mixed": (567, 27),
    "tokens smc": (571, 27),
    "mdm elbo": (376, 33),
    "mdm path": (340, 33),
    "mdm blocks": (226, 17),
    "cot": (1307, 59),
    "causal LM": (93, 9),
    "train entitynlm": (1370, 4),
    "train kglm": (2501, 7),
    "train lrlm": (985, 6),
    "train lstm": (315, 5),
    "train nklm": (2294, 3),
    "train rnn": (314, 8),
    "train rnng": (2772, 4),
    "train srnn": (203, 2),
    "train mdm": (673, 10),
    "learner causal": (107, 7),
    "language causal": (322, 14),
    "learner rnng": (907, 6),
    "language rnng": (1694, 16),
}
"""Launches of operations, and how often the host waits for the device."""

ON_THE_HOST = ("lda", "lrlm", "lstm", "rnn", "srnn")
"""Models that have nothing to wait for while they go through a text."""


def a_token(model: str, estimator: str) -> int:
    """How often the host may wait a token, however many texts and samples there are."""
    if estimator == "smc":  # which particles go on, and what they draw next
        return 1
    if model in ON_THE_HOST:
        return 0
    if estimator == "dpf":  # two beams, passes and a pilot; of KGLM what is not listed
        return 6 if model == "kglm" else 4
    return 2 if estimator == "mixed" else 1  # it searches, and then it draws


@pytest.fixture(scope="module")
def every_run():
    return dict(runs())


def test_every_run_has_a_bound(every_run):
    assert every_run.keys() == COSTS.keys()


@pytest.mark.parametrize("name", COSTS)
def test_launches_and_waits(every_run, name):
    work = counted(every_run[name])
    launches, waits = COSTS[name]
    assert work.num_launches <= MORE * launches
    assert work.num_waits <= MORE * waits, work.waits.most_common()


@pytest.fixture(scope="module")
def lengths():
    return [dict(of_models(words)) for words in (WORDS, 3 * WORDS)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [name for name in COSTS if name.split()[0] in TINY_MODELS]
)
def test_waits_a_token(lengths, name):
    short, long = (counted(runs[name]) for runs in lengths)
    more = long.waits - short.waits
    allowed = 2 * WORDS * a_token(*name.split())
    assert long.num_waits - short.num_waits <= allowed, more


def test_a_step_of_a_learner_waits_for_its_batch(tmp_path):
    """Inputs, labels and their number go there, and transformers looks for packing."""
    pytest.importorskip("accelerate", reason="the extra distort is not installed")
    short, long = (learner_epoch(tmp_path, number) for number in (2, 6))
    more = long.waits - short.waits
    assert long.num_waits - short.num_waits <= 4 * 4, more
