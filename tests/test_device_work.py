"""What models ask a device for does not grow: counted work, never seconds.

Two texts of four words under four samples, of trainings a step; a fifth more is let
pass, since which words and latents share their work follows from draws. When something
gets cheaper, lower its line: ``python -m tests.device_work`` prints the table anew.
"""

from __future__ import annotations

import pytest

from tests.device_work import counted, runs

MORE = 1.2
COSTS = {
    "entitynlm mixed": (3027, 173),
    "entitynlm is": (1389, 81),
    "entitynlm contexts": (1727, 85),
    "entitynlm beam": (1473, 91),
    "entitynlm smc": (4422, 173),
    "entitynlm ais": (3460, 144),
    "kglm mixed": (6437, 452),
    "kglm is": (3887, 262),
    "kglm contexts": (3985, 274),
    "kglm beam": (3997, 279),
    "kglm smc": (7699, 556),
    "kglm ais": (7590, 535),
    "lda ais": (1053, 1),
    "lda l2r": (388, 1),
    "lda chib": (4141, 1),
    "lda mixed": (461, 1),
    "lda is": (326, 1),
    "lda beam": (342, 1),
    "lda smc": (651, 1),
    "lrlm exact": (738, 89),
    "lrlm mixed": (2669, 164),
    "lrlm is": (1398, 101),
    "lrlm contexts": (2021, 164),
    "lrlm beam": (1771, 106),
    "lrlm smc": (4714, 368),
    "lstm exact": (98, 4),
    "lstm is": (102, 4),
    "lstm contexts": (129, 4),
    "lstm beam": (98, 4),
    "nklm mixed": (5397, 290),
    "nklm is": (1946, 97),
    "nklm contexts": (2692, 139),
    "nklm beam": (2176, 148),
    "nklm smc": (4597, 234),
    "rnn exact": (113, 7),
    "rnn is": (117, 7),
    "rnn contexts": (147, 7),
    "rnn beam": (113, 7),
    "rnng mixed": (6342, 403),
    "rnng is": (2418, 147),
    "rnng contexts": (3196, 197),
    "rnng beam": (2449, 147),
    "rnng smc": (6273, 495),
    "rnng ais": (9290, 595),
    "srnn exact": (56, 2),
    "tokens canonical": (179, 12),
    "tokens exact": (808, 33),
    "tokens beam": (650, 29),
    "tokens is": (571, 27),
    "tokens mixed": (567, 27),
    "tokens smc": (571, 27),
    "mdm elbo": (372, 29),
    "mdm path": (372, 29),
    "cot": (1507, 73),
    "causal LM": (93, 9),
    "train entitynlm": (1660, 24),
    "train kglm": (4979, 166),
    "train lrlm": (2395, 131),
    "train lstm": (315, 5),
    "train nklm": (3241, 105),
    "train rnn": (314, 8),
    "train rnng": (5121, 168),
    "train mdm": (673, 10),
    "learner causal": (107, 7),
    "language causal": (322, 15),
    "learner rnng": (2418, 147),
    "language rnng": (6208, 490),
}
"""Launches of operations, and how often the host waits for the device."""


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
