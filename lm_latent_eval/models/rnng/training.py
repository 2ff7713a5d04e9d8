r"""Training of an RNNG and its CRF: on trees, on sentences, or one then the other.

Supervised: log p(x, z) and log q(z | x) of the trees of a treebank, side by side.
Unsupervised: the evidence lower bound, with the entropy of q in closed form,

.. math:: E_q[\log p(x, z)] + H[q(z \mid x)]

Its gradient in p is that of a mean over K sampled trees; in q that of the exact entropy
plus the score-function estimate, each tree's log p(x, z) less the mean of the others'.
Source: Kim et al. (2019); no annealing, and one optimizer for both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.learning import padded, sizes, train_checkpoint
from lm_latent_eval.models.rnng.crf import CRFProposal
from lm_latent_eval.models.rnng.data import ParsedSentence, reduces
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.models.rnng.trees import Trees
from lm_latent_eval.options import one_of, whole
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, PADDING, START, UNKNOWN, WordTokenizer
from lm_latent_eval.training.options import Options, RNNGSize
from lm_latent_eval.training.supervised import Part

Objective = Literal["supervised", "unsupervised"]

Item = tuple[list[int], list[int]]
"""Word ids of a sentence with its end, and the REDUCEs before each; empty without a
tree."""


def train_rnng(
    sentences: Sequence[ParsedSentence] | Sequence[str],
    dev: Sequence[ParsedSentence] | Sequence[str],
    directory: Path,
    *,
    objective: Objective = "supervised",
    start: Checkpoint | None = None,
    words: WordTokenizer | None = None,
    min_count: int = 2,
    num_samples: int = 4,
    size: RNNGSize | None = None,
    options: Options | None = None,
) -> RNNG:
    """Train p and q, and write the checkpoint.

    Args:
        sentences: Training sentences, with trees if the objective is supervised.
        dev: Development sentences, for the learning rate and for stopping.
        directory: Folder of the checkpoint. An interrupted run there is resumed.
        objective: Training objective.
        start: An RNNG to continue from, with its vocabulary and size.
        words: Tokenizer with a closed vocabulary; None builds one from the sentences.
        min_count: Without ``words``: rarer words are unknown.
        num_samples: Trees a sentence, at least 2, if unsupervised.
        size: Size of the model.
        options: Options of training.

    Raises:
        ValueError: If the objective is unknown or needs trees that are missing, or K is
            below 2.
    """
    one_of("objective", objective, get_args(Objective))
    size, options = size or RNNGSize(), options or Options()
    texts = [s if isinstance(s, str) else s.text for s in sentences]
    if start is None:
        tokenizer = words or WordTokenizer.train(texts, min_count=min_count)
        if words:  # a closed vocabulary
            vocabulary: dict[str, Any] = {
                "vocab_size": tokenizer.vocab_size,
                "never_uttered": [PADDING, UNKNOWN, START],
            }
        else:
            vocabulary = sizes(tokenizer, texts)
        torch.manual_seed(options.seed)
        model = RNNG(RNNGConfig(**vocabulary, **vars(size)))
    else:
        tokenizer, model = start.tokenizer, start.model.requires_grad_(True)
    longest = model.config.max_words
    learnt = items(sentences, tokenizer, longest, objective)
    held_out = items(dev, tokenizer, longest, objective)
    train_checkpoint(
        model,
        parts(model, objective, num_samples),
        learnt,
        held_out,
        directory,
        tokenizer,
        options,
        size=lambda item: len(item[0]),
        about={
            "objective": objective,
            "num_samples": num_samples if objective == "unsupervised" else None,
            "init": start.digest if start else None,
            **({} if start else vars(size)),
        },
        spelled=texts,
        unit="sentences",
    )
    return model


def items(
    sentences: Sequence[ParsedSentence] | Sequence[str],
    tokenizer: WordTokenizer,
    longest: int,
    objective: Objective,
) -> list[Item]:
    """Encode the sentences that fit the model.

    Raises:
        ValueError: If the objective needs trees that are missing.
    """
    encoded: list[Item] = []
    for sentence in sentences:
        if isinstance(sentence, str):
            if objective == "supervised":
                raise ValueError(
                    "supervised training needs trees: give a treebank in brackets, or "
                    "--objective unsupervised"
                )
            ids = tokenizer(sentence).ids
            encoded.append(([*ids, END] if ids else [], []))
        else:
            encoded.append(reduces(sentence, tokenizer))
    kept = [item for item in encoded if 0 < len(item[0]) - 1 <= longest]
    if len(kept) < len(encoded):
        print(
            f"left out {len(encoded) - len(kept)} of {len(encoded)} sentences: "
            f"no words, or more than {longest}",
            file=sys.stderr,
        )
    return kept


def parts(model: RNNG, objective: Objective, num_samples: int) -> dict[str, Part[Item]]:
    """Modules to train with their losses: p and the CRF, or both by one bound.

    Raises:
        ValueError: If ``num_samples`` is below 2 and the objective samples.
    """
    if objective == "supervised":
        return {
            "p": Part(model.generative, lambda batch: -log_p(model, batch).sum()),
            "crf": Part(model.spans, lambda batch: -log_q(model, batch).sum()),
        }
    num_samples = whole("num_samples", num_samples, 1)
    if num_samples < 2:
        raise ValueError(
            f"num_samples={num_samples}: each tree is compared with the others, so "
            "expected at least 2"
        )
    return {"bound": Part(model, lambda batch: -bound(model, batch, num_samples).sum())}


def log_p(model: RNNG, batch: Sequence[Item]) -> Tensor:
    """log p(x, z) of annotated sentences, (B,) nats."""
    tokens, trees = collate(batch, model.device)
    return model.log_joint(model.encode(tokens), trees)[:, 0]


def log_q(model: RNNG, batch: Sequence[Item]) -> Tensor:
    """log q(z | x) of annotated sentences, (B,) nats."""
    tokens, trees = collate(batch, model.device)
    proposal = CRFProposal(model)
    return proposal.log_prob(proposal.encode(tokens), trees)[:, 0]


def bound(model: RNNG, batch: Sequence[Item], num_samples: int) -> Tensor:
    """Estimate the evidence lower bound, (B,) nats, differentiable.

    The trees are drawn from torch's global generator, which the trainer seeds.
    """
    ids = [ids for ids, _ in batch]
    tokens = TokenBatch.collate(ids, first=START, device=model.device)
    proposal = CRFProposal(model)
    encoded = proposal.encode(tokens)
    entropy = encoded.entropy  # first, so that the chart is kept with its gradient
    with torch.no_grad():
        draws = proposal.sample(
            encoded, lambda _: torch.rand(len(batch), num_samples, 4), num_samples
        )
    reward = model.log_joint(model.encode(tokens), draws.latents)
    others = (reward.sum(-1, keepdim=True) - reward) / (num_samples - 1)
    advantage = (reward - others).detach()
    # Zero, but its gradient is that of E_q[log p(x, z)] in q.
    score = proposal.log_prob(encoded, draws.latents)
    score = advantage * (score - score.detach())
    return (reward + score).mean(-1) + entropy


def collate(batch: Sequence[Item], device: torch.device) -> tuple[TokenBatch, Trees]:
    ids, counts = zip(*batch, strict=True)
    tokens = TokenBatch.collate(ids, first=START, device=device)
    before = padded(counts, device)
    return tokens, Trees(before, torch.zeros_like(tokens.length)[:, None])
