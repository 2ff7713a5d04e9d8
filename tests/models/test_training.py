"""Training of every model learns from what it is shown, and writes what it has learnt.

How runs stop and resume is tested in ``tests/test_training.py``; options of the
command, with it; RNNGs, with trees, in a file of their own.
"""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.entitynlm.data import CoreferenceText, Mention
from lm_latent_eval.models.entitynlm.training import train_entitynlm
from lm_latent_eval.models.kglm.training import train_kglm
from lm_latent_eval.models.lrlm.training import train_lrlm
from lm_latent_eval.models.nklm.training import train_nklm
from lm_latent_eval.models.recurrent_training import train_lstm
from lm_latent_eval.models.rnng.training import train_rnng
from lm_latent_eval.models.srnn import train_srnn
from lm_latent_eval.text.words import END
from lm_latent_eval.training.options import (
    EntityNLMSize,
    KGLMSize,
    LRLMSize,
    LSTMSize,
    MarginObjective,
    NKLMSize,
    Options,
    RNNGSize,
    SRNNSize,
)
from tests.means import normal
from tests.simulated_device import SIMULATED, simulated_device
from tests.test_laws import TINY_MODELS
from tests.tiny_models import annotated

TEXTS = annotated(40)


def coreference(text) -> CoreferenceText:
    number = {m.entity: n for n, m in enumerate(text.mentions)}
    mentions = (Mention(m.start, m.end, number[m.entity]) for m in text.mentions)
    ordered = sorted(mentions, key=lambda m: (m.start, -m.end))
    return CoreferenceText(text.id, text.text, tuple(ordered))


SMALL = {"embedding_dim": 8, "hidden_size": 10}
RELATIONS = {**SMALL, "num_layers": 1, "fact_dim": 4, "num_pieces": 50, "dropout": 0.0}
MARGIN = MarginObjective(0.3, l2=1e-6)
CHAINS = EntityNLMSize(**SMALL, max_mention_length=4)
TRAIN = {
    "entitynlm": partial(train_entitynlm, size=CHAINS),
    "kglm": partial(train_kglm, size=KGLMSize(8, 6, 10, num_layers=1, cutoff=20)),
    "lrlm": partial(train_lrlm, size=LRLMSize(**RELATIONS)),
    "lstm": partial(train_lstm, size=LSTMSize(8, 10, num_layers=1, dropout=0.1)),
    "nklm": partial(train_nklm, size=NKLMSize(**RELATIONS)),
    "rnn": partial(train_lstm, size=LSTMSize(8, 10, cell="rnn"), already_cut=True),
    "srnn": partial(train_srnn, size=SRNNSize(10), margin=MARGIN, already_cut=True),
}
PARTS = {
    "entitynlm": {"p", "peeking", "nonpeeking", "spelling"},
    "kglm": {"p", "peeking", "nonpeeking", "smoothing", "spelling"},
    "rnn": {"p"},
    "srnn": {"s"},
}
"""Of those that have not p and a spelling alone."""
READ = {
    "entitynlm": coreference,
    "lstm": lambda text: text.text,
    "rnn": lambda text: text.text,
    "srnn": lambda text: " ".join(text.text.split()[:6]),
}
"""What of an annotated text is read where it is not all of it."""


@pytest.mark.parametrize("name", TRAIN)
def test_training_learns_and_the_checkpoint_is_the_model(name, tmp_path, capsys):
    train, parts = TRAIN[name], PARTS.get(name, {"p", "spelling"})
    texts = [*map(READ.get(name, lambda text: text), TEXTS)]
    options = Options(epochs=3, batch_size=8, learning_rate=0.02)
    model = train(texts[:30], texts[30:], tmp_path / "out", options=options)
    losses: dict[str, list[float]] = {}
    for part, loss in re.findall(r"(\w+) [\d.]+ -> ([\d.]+)", capsys.readouterr().err):
        losses.setdefault(part, []).append(float(loss))
    assert losses.keys() == parts
    for part, of_dev in losses.items():
        assert len(of_dev) == 3 and min(of_dev) < of_dev[0] - 0.02, part
    loaded = load_checkpoint(tmp_path / "out", expected={"rnn": "lstm"}.get(name, name))
    wanted = model.state_dict()
    found = loaded.model.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert (loaded.orthography is None) == ("spelling" not in parts)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "nothing beside it"
    if name != "srnn":
        assert loaded.model.config.num_unknown_types > 0


SENTENCES = [" ".join(text.text.split()[:6]) for text in TEXTS]
RNNGS = RNNGSize(10, num_layers=1, proposal_size=8, max_words=12)
ON_DEVICE = TRAIN | {
    "rnng": partial(train_rnng, size=RNNGS, objective="unsupervised", num_samples=2),
}


@pytest.mark.nightly  # daily: a KGLM, in tests/test_training.py
@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_device_learns_what_the_cpu_does(name, tmp_path, capsys):
    """Weights of no gradient aside, which rounding moves by Adam's whole step."""
    read = READ.get(name, lambda text: text)
    texts = SENTENCES if name == "rnng" else [*map(read, TEXTS)]

    def losses(device):
        options = Options(2, batch_size=8, learning_rate=2e-3, device=device)
        train = partial(ON_DEVICE[name], texts[:12], texts[12:20])
        model = train(tmp_path / device.partition(":")[0], options=options)
        assert model.device.type == "cpu"
        return [*map(float, re.findall(r" (\d+\.\d{4})", capsys.readouterr().err))]

    wanted = losses("cpu")
    with simulated_device() as work:
        found = losses(SIMULATED)
    assert work.num_launches > 100, "premise: it was done there"
    assert found == pytest.approx(wanted, abs=1e-3)


def test_texts_without_words_are_refused_before_the_first_epoch(tmp_path, capsys):
    with pytest.raises(ValueError, match="no words to learn spelling from"):
        train_lstm(["<unk> <unk>"], ["<unk>"], tmp_path / "out")
    assert "epoch" not in capsys.readouterr().err


LEARNT = [(name, None) for name in TINY_MODELS if name != "lda"]
LEARNT += [("entitynlm", "peeking"), ("entitynlm", "nonpeeking"), ("rnng", "crf")]
LEARNT += [("kglm", which) for which in ("peeking", "nonpeeking", "smoothing")]


@pytest.mark.parametrize(("name", "which"), LEARNT)
def test_gradients_are_those_of_finite_differences(name, which):
    """Of log p(x, z), or of log q(z | x), over every latent, in a random direction."""
    case = TINY_MODELS[name].case()
    model, text = case.model.requires_grad_(True), [*case.some_words(3), END]
    batch, latents = case.batch([text]), case.every_latent(text)
    possible = case.log_joint(text).detach() > -torch.inf

    def value() -> torch.Tensor:
        if which is None:
            return model.log_joint(model.encode(batch), latents)[0, possible].sum()
        q = case.proposal(which)
        return q.log_prob(q.encode(batch), latents)[0, possible].sum()

    value().backward()
    learnt = [weight for weight in model.parameters() if weight.grad is not None]
    assert all(weight.grad.any() for weight in learnt), "each does something"
    moved = [(w, normal(*w.shape, seed=n)) for n, w in enumerate(learnt)]
    slope = sum((weight.grad * way).sum().item() for weight, way in moved)
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for weight, way in moved:
                weight += step * way
            ends.append(value().item())
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
    assert abs(slope) > 1e-3, "premise"
