"""Conversion of RNNG checkpoints from the authors' program.

Their file is a pickled dictionary with a whole model object, of which the parameters
are read and nothing is imported or run (``pickles.py``). Originals charge for actions
that newly trained models exclude; ``only_possible=False`` in the configuration keeps
the authors' probabilities.

The words are those of a treebank, so the tokenizer splits at white space alone: a text
is one sentence of the original data, with one space between words.
Source: the code of Kim et al. (2019).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.convert.originals import (
    OriginalError,
    in_order,
    refusing,
    renamed,
    with_weights,
)
from lm_latent_eval.convert.pickles import parameters, part, read_torch, tensors
from lm_latent_eval.files import regular
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.text.words import SPECIAL_WORDS, WordTokenizer

_RENAMED = (
    (r"^emb\.weight$", r"generative.embeddings.weight"),
    (r"^vocab_mlp\.1\.bias$", r"generative.bias"),
    (r"^stack_rnn\.linears\.(\d+)\.(\w+)$", r"generative.stack.linears.\1.\2"),
    (r"^tree_rnn\.linear\.(\w+)$", r"generative.composition.linear.\1"),
    (r"^action_mlp_p\.1\.(\w+)$", r"generative.action.\1"),
    (r"^q_pos_emb\.weight$", r"spans.positions.weight"),
    (r"^q_leaf_rnn\.(\w+)$", r"spans.rnn.\1"),
    (r"^q_binary\.([02])\.(\w+)$", r"spans.score.\1.\2"),
    (r"^q_binary\.4\.(\w+)$", r"spans.score.3.\1"),
)
_TIED = "vocab_mlp.1.weight"
_SIZES = ("emb.weight", "q_leaf_rnn.weight_hh_l0", "q_pos_emb.weight")


def rename_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the original's tensors their names in ``RNNG``.

    The original's proposal shares the word embeddings of p; ours gets a copy.

    Raises:
        ValueError: If a tensor's name is unknown, or the output layer is not the table
            of embeddings.
    """
    tied = weights.get(_TIED)
    if tied is not None and not torch.equal(tied, weights["emb.weight"]):
        raise ValueError(f"{_TIED} is not emb.weight: not a tied original RNNG")
    ours = renamed(weights, _RENAMED, "RNNG", [re.escape(_TIED)])
    embeddings = ours["generative.embeddings.weight"]
    return {**ours, "spans.embeddings.weight": embeddings.clone()}


def configuration(weights: Mapping[str, Tensor], *, sentence_ends: bool) -> RNNGConfig:
    """Sizes of an original, read off its weights.

    Args:
        weights: Tensors under their original names.
        sentence_ends: Whether sentences are scored with their end, which is not stored
            in a checkpoint (the published perplexities are without).

    Raises:
        ValueError: If a tensor with a size is missing or no matrix.
    """
    for name in _SIZES:
        if name not in weights or weights[name].ndim != 2:
            raise ValueError(f"{name} is no matrix in it")
    vocab_size, hidden_size = weights["emb.weight"].shape
    layers = [name for name in weights if re.fullmatch(r"stack_rnn.*\.bias", name)]
    return RNNGConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=len(layers),
        proposal_size=weights["q_leaf_rnn.weight_hh_l0"].shape[1],
        max_words=len(weights["q_pos_emb.weight"]) - 2,
        sentence_ends=sentence_ends,
        only_possible=False,
        never_uttered=[],
    )


_CLASSES = (
    "models.RNNG",
    "models.SeqLSTM",
    "models.TreeLSTM",
    "TreeCRF.ConstituencyTreeCRF",
    "torch.nn.backends.thnn._get_thnn_function_backend",  # until PyTorch 1.2
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.container.ModuleList",
    "torch.nn.modules.container.Sequential",
    "torch.nn.modules.dropout.Dropout",
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.rnn.LSTM",
    "torch.nn.modules.sparse.Embedding",
)


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
        ours = rename_weights(weights)
    except ValueError as err:
        raise OriginalError(f"{path} holds no original RNNG: {err}") from err
    model = with_weights(lambda: RNNG(config), ours, lambda _: path)
    if len(words) != config.vocab_size:
        raise OriginalError(
            f"{path} has {len(words)} words but embeddings of {config.vocab_size}: "
            "they are of different models"
        )
    tokenizer = WordTokenizer.at_white_space(words, len(words))
    checkpoint.save(model, tokenizer, Path(output), model.state_dict())
    return model


def read(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Weights under their original names, and the words by id.

    Raises:
        OriginalError: If the file is damaged, unsafe, or something else.
    """
    with refusing(path):
        saved = read_torch(regular(path).read_bytes(), _CLASSES)
        weights = tensors(parameters(part(saved, "model")))
        words = in_order(part(saved, "idx2word"))
    if tuple(words[: len(SPECIAL_WORDS)]) != SPECIAL_WORDS:
        raise OriginalError(
            f"{path}: its first words are {words[: len(SPECIAL_WORDS)]!r:.200}, not "
            f"{list(SPECIAL_WORDS)}"
        )
    ids = saved.get("word2idx")
    if isinstance(ids, dict) and ids != {w: i for i, w in enumerate(words)}:
        raise OriginalError(f"{path}: 'word2idx' and 'idx2word' contradict each other")
    return weights, words
