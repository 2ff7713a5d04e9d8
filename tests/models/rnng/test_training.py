"""Training: exact gradients, and that it learns what it is shown."""

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.rnng import crf
from lm_latent_eval.models.rnng.training import bound, items, log_p, log_q, train_rnng
from lm_latent_eval.text.words import END, WordTokenizer
from tests.models.rnng import reference

SENTENCES = [[4, 5, 5, 4], [5, 4, 4]]
BATCH = [([*ids, END], []) for ids in SENTENCES]


def enumerated(rnng):
    """log p and log q of every tree of every sentence, with gradients."""
    result = []
    for ids in SENTENCES:
        batch, proposal = reference.batch([ids], "eos"), rnng.proposal("crf")
        trees = reference.trees([reference.every_tree(len(ids))], "eos")
        log_p = rnng.log_joint(rnng.encode(batch), trees)[0]
        result.append((log_p, proposal.log_prob(proposal.encode(batch), trees)[0]))
    return result


def gradient(rnng, loss):
    weights = [*rnng.parameters()]
    every = torch.autograd.grad(loss, weights, materialize_grads=True)
    return torch.cat([of_weight.flatten() for of_weight in every])


def test_the_bound_and_its_gradient_are_unbiased():
    """Against the exact bound, sum_z q (log p - log q), and its exact gradient."""
    rnng = reference.tiny().requires_grad_(True)
    exact = sum((log_q.exp() * (p - log_q)).sum() for p, log_q in enumerated(rnng))
    exact_gradient = gradient(rnng, exact)
    torch.manual_seed(0)
    rounds = 60
    values, gradients = [], []
    for _ in range(rounds):
        value = bound(rnng, BATCH, num_samples=3).sum()
        values.append(value.detach())
        gradients.append(gradient(rnng, value))
    values, gradients = torch.stack(values), torch.stack(gradients)
    stderr = values.std() / rounds**0.5
    assert 0 < stderr < 0.05, "premise: precise enough to notice an error"
    assert abs(values.mean() - exact) < 5 * stderr
    stderr = gradients.std(0) / rounds**0.5
    # Of some parameters (single words' scores) the gradient is zero but for rounding.
    off = (gradients.mean(0) - exact_gradient).abs()
    assert (off < 5 * stderr + 1e-12).all()
    of_q = slice(sum(p.numel() for p in rnng.generative.parameters()), None)
    informative = exact_gradient[of_q].abs() > 5 * stderr[of_q]
    assert informative.sum() > 20, "premise: the gradient of q is seen"


def test_dropout_is_for_training_alone():
    rnng = reference.tiny(dropout=0.5)

    def values():
        batch = [([4, 5, 5, 4, END], [0, 0, 1, 0, 2])]
        return torch.cat([log_p(rnng, batch), log_q(rnng, batch)])

    calm = values()
    assert torch.equal(values(), calm)
    rnng.train()
    torch.manual_seed(0)
    assert (values() != calm).all()


TREES = """(S (NP (T the) (T dog)) (VP (T sees) (NP (T the) (T cat))))
(S (NP (T the) (T cat)) (VP (T sees) (NP (T the) (T dog))))
(S (NP (T the) (T cat)) (VP (T sleeps)))
(S (NP (NP (T the) (T dog)) (PP (T of) (NP (T the) (T cat)))) (VP (T sleeps)))
"""
LINES = "the dog sees the cat\nthe cat sees the dog\nthe cat sleeps"
RUN = ("--epochs", "15", "--batch-size", "2", "--learning-rate", "0.1")
RUN += ("--patience", "15", "--min-count", "1")
SIZE = ("--hidden-size", "12", "--num-layers", "1", "--proposal-size", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rnng")
    (folder / "trees.ptb").write_text(TREES)
    (folder / "lines.txt").write_text(LINES)
    return folder


def train(folder, data, output, *more):
    files = ["--data", str(folder / data), "--dev", str(folder / data)]
    options = [*files, *RUN, *SIZE, "--dropout", "0", *more]
    return main(["train", "rnng", "--output", str(folder / output), *options])


def test_train_on_trees_then_on_sentences(folder, capsys):
    assert train(folder, "trees.ptb", "first") == 0
    first = load_checkpoint(folder / "first", expected="rnng")
    assert first.model.config.only_possible
    batch = reference.batch([first.tokenizer("the dog sees the cat").ids], "eos")
    proposal = first.model.proposal("crf")
    best = proposal.beam(proposal.encode(batch), 1)
    # ((the dog) (sees (the cat)))
    assert best.latents.before[0, 0].tolist() == [0, 0, 1, 0, 0, 3]
    assert best.score.exp() > 0.9
    # One of four equally frequent sentences.
    assert evidence(first.model, batch) > -2.5

    more = ["--objective", "unsupervised", "--init", str(folder / "first")]
    more += ["--epochs", "5", "--learning-rate", "0.02"]
    assert train(folder, "lines.txt", "second", *more) == 0
    second = load_checkpoint(folder / "second", expected="rnng")
    assert second.tokenizer.vocabulary == first.tokenizer.vocabulary
    assert evidence(second.model, batch) > evidence(first.model, batch)
    shown = capsys.readouterr()
    assert "nats a token, train -> dev: bound " in shown.err


def evidence(model, batch):
    words = batch.targets.shape[1] - 1
    trees = reference.trees([reference.every_tree(words)], "eos")
    assert trees.before.shape[1] == crf.num_trees(words)
    return model.log_joint(model.encode(batch), trees).logsumexp(-1).item()


def test_what_cannot_be_trained(folder, capsys):
    assert train(folder, "lines.txt", "third") == 2
    assert "supervised training needs trees" in capsys.readouterr().err
    more = ["--objective", "unsupervised", "--num-samples", "1"]
    assert train(folder, "lines.txt", "third", *more) == 2
    assert "num_samples=1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="did you mean supervised"):
        train_rnng([], [], folder / "third", objective="supervise")


def test_sentences_that_do_not_fit_are_left_out(capsys):
    tokenizer = WordTokenizer.train(["a b"], min_count=1)
    found = items(["a b", "", "a b a", "a"], tokenizer, 2, "unsupervised")
    assert found == [([4, 5, END], []), ([4, END], [])]
    assert "left out 2 of 4 sentences" in capsys.readouterr().err
