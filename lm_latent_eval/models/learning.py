"""Training of word models to a checkpoint, and of how words are spelled and spaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lm_latent_eval.devices import moved, sent
from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.files import digest
from lm_latent_eval.text.orthography import Orthography, Spacing, Spelling
from lm_latent_eval.text.words import LITERAL_UNKNOWN, START, WordTokenizer, split
from lm_latent_eval.training.options import Options
from lm_latent_eval.training.supervised import ItemT, Part, Trainer, only_trainer

AnnotatedT = TypeVar("AnnotatedT", bound=tuple[Any, ...])


class AnnotatedText(Protocol):
    @property
    def text(self) -> str: ...


TextT = TypeVar("TextT", bound=AnnotatedText)

OPTIONS = Options(epochs=20, batch_size=64, learning_rate=3e-3, patience=2)
HELD_OUT = 10
"""Interval of held-out word types: every tenth one decides when to stop."""


def sizes(tokenizer: WordTokenizer, texts: Iterable[str]) -> dict[str, Any]:
    """Values of a ``WordsConfig`` from a vocabulary and its training text."""
    words = (word for text in texts for word in tokenizer.cut(text))
    return {
        "vocab_size": tokenizer.vocab_size,
        "num_words": tokenizer.num_words,
        "num_unknown_types": tokenizer.count_unknown_types(words),
    }


def learn_orthography(
    texts: Sequence[str], tokenizer: WordTokenizer, *, most: int | None = None
) -> Orthography:
    """Fit spelling and spacing models to a model's training texts.

    Every word type counts once, known ones included: rare words resemble types, and
    there are more of them. It takes a minute, so an interrupted run starts again.

    Args:
        texts: Training text.
        tokenizer: The model's words, which spellings exclude.
        most: Largest number of epochs, if below that of ``OPTIONS``.

    Raises:
        ValueError: If the texts have no words.
    """
    options = replace(OPTIONS, epochs=min(OPTIONS.epochs, most or OPTIONS.epochs))
    types = _word_types(texts)
    held_out = types[::HELD_OUT]
    rest = sorted(set(types) - set(held_out)) or held_out
    torch.manual_seed(options.seed)
    spelling = Spelling()

    def loss(words: Sequence[str]) -> Tensor:
        return -spelling.log_mass(words).sum()

    with TemporaryDirectory() as temporary:  # state and lock lie beside a directory
        trainer = Trainer(
            {"spelling": Part(spelling, loss)},
            size=lambda word: len(word.encode()) + 1,
            options=options,
            directory=Path(temporary) / "spelling",
            unit="word types",
        )
        trainer.run(rest, held_out)
    spelling.eval().requires_grad_(False)
    spelling.exclude(tokenizer.vocabulary)
    spacing = Spacing.train((text, tokenizer(text)) for text in texts)
    return Orthography(spelling, spacing)


def _word_types(texts: Sequence[str]) -> list[str]:
    types = sorted({word for text in texts for word in split(text)} - {LITERAL_UNKNOWN})
    if not types:
        raise ValueError("the texts have no words to learn spelling from")
    return types


def train_checkpoint(
    model: Pretrained,
    parts: dict[str, Part[ItemT]],
    items: Sequence[ItemT],
    dev: Sequence[ItemT],
    directory: Path,
    tokenizer: WordTokenizer,
    options: Options,
    *,
    size: Callable[[ItemT], int],
    about: Mapping[str, Any],
    spelled: Sequence[str],
    unit: str = "texts",
) -> None:
    """Train a new model and write its checkpoint.

    Args:
        model: The model, which is left at its best weights.
        parts: Trained modules with their losses.
        items: Training items.
        dev: Development items, which decide when to stop.
        directory: Folder of the checkpoint. An interrupted run there is resumed.
        tokenizer: Its vocabulary.
        options: Options of training.
        size: Number of predicted tokens of an item.
        about: Further settings that identify the run, such as sizes of the model.
        spelled: Texts to learn spelling and spacing from; if empty, only words are
            scored.
        unit: Name of the items in messages.

    Raises:
        ValueError: If there is nothing to learn from, or ``spelled`` has no words.
    """
    if spelled:
        _word_types(spelled)  # not after the last epoch
    moved(model, options.device)
    with only_trainer(directory):
        trainer = Trainer(
            parts,
            size=size,
            options=options,
            directory=directory,
            about={"model": model.config.model_type, **about},
            unit=unit,
        )
        trainer.run(items, dev)
        moved(model, "cpu").eval()  # type: ignore[no-untyped-call]
        writing = (
            learn_orthography(spelled, tokenizer, most=options.epochs)
            if spelled
            else None
        )
        save(model, tokenizer, directory, model.state_dict(), writing)


def train_annotated(
    model: Pretrained,
    parts: dict[str, Part[AnnotatedT]],
    annotate: Callable[[TextT], AnnotatedT | None],
    texts: Sequence[TextT],
    dev: Sequence[TextT],
    directory: Path,
    tokenizer: WordTokenizer,
    about: Mapping[str, Any],
    options: Options,
) -> None:
    """Train a new model on annotated texts, and write its checkpoint.

    ``annotate`` makes an item of a text, its word ids first; None drops the text. Other
    arguments are those of ``train_checkpoint``.
    """
    read = digest(repr((texts, dev)))
    items, held_out = (
        [item for text in part if (item := annotate(text)) is not None]
        for part in (texts, dev)
    )
    train_checkpoint(
        model,
        parts,
        items,
        held_out,
        directory,
        tokenizer,
        options,
        size=lambda item: len(item[0]),
        about={**about, "digest of the annotation": read},
        spelled=[text.text for text in texts],
    )


def padded(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Tensor:
    """Pad a column of annotation, one latent a text, (B, 1, T)."""
    column = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return sent(column[:, None], device)


def annotated_parts(
    model: Any, kind: Callable[..., Any]
) -> dict[str, Part[tuple[list[int], ...]]]:
    """Trained parts: log p(x, z) and log q(z | x) of every proposal.

    Items are word ids of a text, and columns of annotation.

    Args:
        model: Model with a module ``generative`` and modules ``proposals`` by name,
            which share no parameters.
        kind: Class of the latents, built from padded annotation.
    """

    def collate(items: Sequence[tuple[list[int], ...]]) -> tuple[TokenBatch, Any]:
        ids, *columns = zip(*items, strict=True)
        latents = kind(*(padded(column, model.device) for column in columns))
        return TokenBatch.collate(ids, first=START, device=model.device), latents

    def loss(items: Sequence[tuple[list[int], ...]]) -> Tensor:
        batch, latents = collate(items)
        log_p: Tensor = model.log_joint(model.encode(batch), latents)
        return -log_p.sum()

    def loss_of(items: Sequence[tuple[list[int], ...]], *, name: str) -> Tensor:
        batch, latents = collate(items)
        proposal = model.proposal(name)
        log_q: Tensor = proposal.log_prob(proposal.encode(batch), latents)
        return -log_q.sum()

    return {"p": Part(model.generative, loss)} | {
        name: Part(trunk, partial(loss_of, name=name))
        for name, trunk in model.proposals.items()
    }
