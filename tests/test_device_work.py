"""What models ask a device for does not grow: counted work, never seconds.

Two texts of four words under four samples, of trainings a step; a fifth more is let
pass, since which words and latents share their work follows from draws. When something
gets cheaper, lower its line: ``python -m tests.device_work`` prints the table anew.
"""

from __future__ import annotations

import pytest

from tests.device_work import WORDS, counted, learner_epoch, of_models, runs

MORE = 1.2
COSTS = {
    "entitynlm mixed": (2214, 21),
    "entitynlm is": (1135, 12),
    "entitynlm contexts": (1275, 16),
    "entitynlm beam": (1106, 11),
    "entitynlm smc": (2803, 36),
    "entitynlm ais": (2357, 24),
    "kglm mixed": (3422, 33),
    "kglm is": (2491, 19),
    "kglm contexts": (2589, 22),
    "kglm beam": (1977, 20),
    "kglm smc": (4693, 34),
    "kglm ais": (4618, 36),
    "lda ais": (1053, 1),
    "lda l2r": (388, 1),
    "lda chib": (4141, 1),
    "lda mixed": (461, 1),
    "lda is": (326, 1),
    "lda beam": (342, 1),
    "lda smc": (651, 1),
    "lrlm exact": (193, 3),
    "lrlm mixed": (412, 9),
    "lrlm is": (373, 7),
    "lrlm contexts": (677, 14),
    "lrlm beam": (362, 6),
    "lrlm smc": (1606, 39),
    "lstm exact": (98, 4),
    "lstm is": (102, 4),
    "lstm contexts": (129, 4),
    "lstm beam": (98, 4),
    "nklm mixed": (2772, 18),
    "nklm is": (1154, 9),
    "nklm contexts": (1428, 13),
    "nklm beam": (986, 8),
    "nklm smc": (2247, 34),
    "rnn exact": (113, 7),
    "rnn is": (117, 7),
    "rnn contexts": (147, 7),
    "rnn beam": (113, 7),
    "rnng mixed": (2339, 18),
    "rnng is": (925, 8),
    "rnng contexts": (802, 9),
    "rnng beam": (916, 8),
    "rnng smc": (1464, 16),
    "rnng ais": (3383, 26),
    "srnn exact": (56, 2),
    "tokens canonical": (179, 12),
    "tokens exact": (808, 33),
    "tokens beam": (650, 29),
    "tokens is": (571, 27),
    "tokens mixed": (567, 27),
    "tokens smc": (571, 27),
    "mdm elbo": (372, 29),
    "mdm path": (372, 29),
    "cot": (1307, 59),
    "causal LM": (93, 9),
    "train entitynlm": (1381, 7),
    "train kglm": (2507, 9),
    "train lrlm": (964, 11),
    "train lstm": (315, 5),
    "train nklm": (2298, 5),
    "train rnn": (314, 8),
    "train rnng": (2781, 7),
    "train srnn": (203, 2),
    "train mdm": (673, 10),
    "learner causal": (107, 7),
    "language causal": (322, 14),
    "learner rnng": (925, 8),
    "language rnng": (1774, 50),
}
"""Launches of operations, and how often the host waits for the device."""

A_TOKEN = {
    "entitynlm is": 1,
    "entitynlm beam": 1,
    "entitynlm smc": 7,
    "kglm is": 2,
    "kglm beam": 2,
    "kglm smc": 6,
    "lda smc": 0,
    "lrlm exact": 0,
    "lrlm is": 0,
    "lrlm beam": 0,
    "lrlm smc": 8,
    "nklm is": 1,
    "nklm beam": 1,
    "nklm smc": 7,
    "rnng is": 1,
    "rnng beam": 1,
    "rnng mixed": 2,
    "rnng smc": 3,
    "rnng ais": 1,
    "rnng contexts": 1,
}
"""How often the host waits a token, however many texts and samples there are."""


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


@pytest.mark.parametrize("name", A_TOKEN)
def test_waits_a_token(lengths, name):
    short, long = (counted(runs[name]) for runs in lengths)
    more = long.waits - short.waits
    assert long.num_waits - short.num_waits <= 2 * WORDS * A_TOKEN[name], more


def test_a_step_of_a_learner_waits_for_its_batch(tmp_path):
    """Inputs, labels and their number go there, and transformers looks for packing."""
    pytest.importorskip("accelerate", reason="the extra distort is not installed")
    short, long = (learner_epoch(tmp_path, number) for number in (2, 6))
    more = long.waits - short.waits
    assert long.num_waits - short.num_waits <= 4 * 4, more
