"""Training from annotated text to a checkpoint that loads, by the command line."""

from __future__ import annotations

import json

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.demo import documents as demo_documents
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.entitynlm.data import read_conll
from lm_latent_eval.models.entitynlm.training import Annotator, parts
from lm_latent_eval.text.words import WordTokenizer
from tests.models.entitynlm import tiny

SIZE = ["--embedding-dim", "12", "--hidden-size", "9", "--max-mention-length", "4"]
RUN = ["--epochs", "6", "--batch-size", "8", "--learning-rate", "0.01", *SIZE]


def as_conll(documents) -> str:
    """Documents of the demonstration world with their mentions as brackets."""
    lines = []
    for document in documents:
        lines.append(f"#begin document {document['id']}")
        names = sorted({m["entity"] for m in document["mentions"]})
        for i, word in enumerate(document["tokens"]):
            cell = ""
            for m in document["mentions"]:
                number = names.index(m["entity"])
                if i == m["start"]:
                    cell += f"({number})" if m["end"] == i + 1 else f"({number}"
                elif i == m["end"] - 1:
                    cell += f"{number})"
            lines.append(f"{i}\t{word}\t{cell or '_'}")
        lines.append("#end document")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entitynlm")
    documents = demo_documents("dev")
    for name, some in (("train", documents[:40]), ("dev", documents[40:50])):
        (folder / f"{name}.conll").write_text(as_conll(some), encoding="utf-8")
    return folder


def test_train_and_load(folder, capsys):
    data = ["--data", str(folder / "train.conll"), "--dev", str(folder / "dev.conll")]
    output = folder / "model"
    command = ["train", "entitynlm", *data, "--output", str(output), *RUN]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out == f"wrote {output}\n"
    checkpoint = load_checkpoint(output, expected="entitynlm")
    config = checkpoint.model.config
    assert (config.hidden_size, config.max_mention_length) == (9, 4)
    assert config.num_unknown_types > 0
    assert checkpoint.orthography is not None
    assert list(config.proposals) == ["peeking", "nonpeeking"]
    written = json.loads((output / "config.json").read_text("utf-8"))
    assert written["model_type"] == "entitynlm"

    # Each part has learnt: better than its first epoch on development text.
    lines = [line for line in shown.err.splitlines() if "train -> dev" in line]
    losses = [
        [float(part.split(" -> ")[-1]) for part in line.split(": ")[-1].split("; ")]
        for line in lines
        if line.count(";") == 2
    ]
    assert all(last < first for first, last in zip(losses[0], losses[-1], strict=True))


def test_the_loss_is_minus_log_p_of_the_annotation(folder):
    texts = read_conll(folder / "dev.conll")
    tokenizer = WordTokenizer.train(text.text for text in texts)
    annotate = Annotator(tokenizer, tiny.MAX_LENGTH)
    model = tiny.entitynlm()
    items = [
        ([min(i, tiny.BEYOND) for i in ids], entity, remaining)
        for ids, entity, remaining in map(annotate, texts)
    ]
    for part in parts(model).values():
        together = part.loss(items)
        one_by_one = sum(part.loss([item]) for item in items)
        torch.testing.assert_close(together, one_by_one, rtol=1e-12, atol=0)
        assert together > 0


def test_every_weight_has_a_gradient(folder):
    """Against differences, which sees whether slots carry gradients through time."""
    model = tiny.entitynlm().requires_grad_(True)
    item = ([4, 5, 4, 5, 4, 4, 3], [1, 1, 0, 2, 1, 2, 0], [1, 0, 0, 0, 0, 0, 0])
    generator = torch.Generator().manual_seed(1)
    for name, part in parts(model).items():
        weights = dict(part.module.named_parameters())
        grads = torch.autograd.grad(part.loss([item]), list(weights.values()))
        for (which, weight), grad in zip(weights.items(), grads, strict=True):
            assert grad.abs().max() > 0, f"{which} of {name} does nothing"
            direction = torch.randn(
                weight.shape, generator=generator, dtype=torch.float64
            )
            step = 1e-5
            with torch.no_grad():
                weight += step * direction
                above = part.loss([item])
                weight -= 2 * step * direction
                below = part.loss([item])
                weight += step * direction
            slope = (above - below) / (2 * step)
            torch.testing.assert_close(
                (grad * direction).sum(), slope, rtol=1e-6, atol=1e-7
            )
