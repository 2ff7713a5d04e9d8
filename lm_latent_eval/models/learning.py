"""Training of word models: from new weights to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lm_latent_eval.latent import Latents
from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import WordTokenizer
from lm_latent_eval.training.options import Options
from lm_latent_eval.training.orthography import learn_orthography
from lm_latent_eval.training.supervised import ItemT, Part, Trainer, only_trainer


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
        parts: What is trained of it.
        items: What it is trained on.
        dev: What says when to stop.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        tokenizer: Its vocabulary.
        options: How to train.
        size: Predicted tokens of an item.
        about: What else tells this run from others: sizes of the model.
        spelled: Texts that tell how words are spelled and spaced; none: only words are
            scored.
        unit: What the items are, for messages.
    """
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
        model.eval()  # type: ignore[no-untyped-call]
        writing = (
            learn_orthography(spelled, tokenizer, most=options.epochs)
            if spelled
            else None
        )
        save(model, tokenizer, directory, model.state_dict(), writing)


def annotated_parts(
    model: Any, collate: Callable[[Sequence[ItemT]], tuple[TokenBatch, Latents]]
) -> dict[str, Part[ItemT]]:
    """Return what is trained: log p(x, z) and log q(z | x) of every proposal.

    Args:
        model: With a module ``generative`` and modules ``proposals`` by name, which
            share no parameters.
        collate: Puts annotated texts together: words and latents.
    """

    def loss(items: Sequence[ItemT]) -> Tensor:
        batch, latents = collate(items)
        log_p: Tensor = model.log_joint(model.encode(batch), latents)
        return -log_p.sum()

    def loss_of(items: Sequence[ItemT], *, name: str) -> Tensor:
        batch, latents = collate(items)
        proposal = model.proposal(name)
        log_q: Tensor = proposal.log_prob(proposal.encode(batch), latents)
        return -log_q.sum()

    return {"p": Part(model.generative, loss)} | {
        name: Part(trunk, partial(loss_of, name=name))
        for name, trunk in model.proposals.items()
    }
