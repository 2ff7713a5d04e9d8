"""Turns an RNNG that its authors' program trained into a checkpoint of ours.

Their file is a pickled dictionary with a whole model object in it. Nothing of it is
imported or run (``saved_modules.py``): of the object its parameters are taken.

The words were cut by a treebank, so the tokenizer cuts at white space alone: texts are
given as the original data has them, one sentence a text, one space between words.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.original import configuration, rename_weights
from lm_latent_eval.models.rnng.saved_modules import (
    Container,
    UnreadableError,
    read_module,
)
from lm_latent_eval.text.words import SPECIAL_WORDS, WordTokenizer

_CLASSES = (
    "models.RNNG",
    "models.SeqLSTM",
    "models.TreeLSTM",
    "TreeCRF.ConstituencyTreeCRF",
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.container.ModuleList",
    "torch.nn.modules.container.Sequential",
    "torch.nn.modules.dropout.Dropout",
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.rnn.LSTM",
    "torch.nn.modules.sparse.Embedding",
)


class OriginalError(ValueError):
    """A file that is no checkpoint of the original program, or is damaged."""


def convert(path: Path, output: Path, *, sentence_ends: bool = True) -> RNNG:
    """Write a checkpoint directory of an original model.

    Args:
        path: The ``.pt`` file that the original program saved.
        output: The directory.
        sentence_ends: Whether ends of sentences are scored, as in training; without
            them as in the published perplexities, where p is no distribution over
            sentences of all lengths.

    Returns:
        The model.

    Raises:
        OriginalError: If the file is damaged, unsafe, or something else.
    """
    weights, words = read(path)
    try:
        config = configuration(weights, sentence_ends=sentence_ends)
        model = RNNG(config)
        model.load_state_dict(rename_weights(weights), assign=True)
    except (KeyError, ValueError, RuntimeError) as err:
        raise OriginalError(f"{path} holds no original RNNG: {err}") from err
    if len(words) != config.vocab_size:
        raise OriginalError(
            f"{path} has {len(words)} words but embeddings of {config.vocab_size}"
        )
    model.eval()  # type: ignore[no-untyped-call]
    tokenizer = WordTokenizer.at_white_space(words, len(words))
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


def read(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights under their original names, and the words by id.

    Raises:
        OriginalError: If the file is damaged, unsafe, or something else.
    """
    try:
        content, parameters = read_module(path, _CLASSES)
        model = content.get("model") if isinstance(content, dict) else None
        words = content.get("idx2word") if isinstance(content, dict) else None
        if not isinstance(model, Container) or not isinstance(words, dict):
            raise OriginalError(
                f"{path} is not what the original program saves: a dictionary with "
                "'model' and 'idx2word'"
            )
        weights = parameters(model)
    except UnreadableError as err:
        raise OriginalError(
            f"{path} is refused: {err}. An original RNNG asks for nothing but its own "
            "classes; nothing in the file was run"
        ) from err
    if set(words) != set(range(len(words))):
        raise OriginalError(f"{path}: the ids of its words are not 0, 1, 2, ...")
    ordered = [str(words[i]) for i in range(len(words))]
    if tuple(ordered[: len(SPECIAL_WORDS)]) != SPECIAL_WORDS:
        raise OriginalError(
            f"{path}: its first words are {ordered[: len(SPECIAL_WORDS)]}, not "
            f"{list(SPECIAL_WORDS)}"
        )
    return weights, ordered
