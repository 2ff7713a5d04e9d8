"""A causal twin of a masked diffusion transformer, to compare with: exact log p.

    lm-latent-eval train mdm --data results/world/train.jsonl \
        --dev results/world/dev.jsonl --output results/world-mdm
    python benchmarks/mdm_twin.py --mdm results/world-mdm \
        --data results/world/train.jsonl --dev results/world/dev.jsonl \
        --test results/world/test.jsonl --output results/world-causal
    lm-latent-eval estimate results/world-mdm --model mdm \
        --data results/world/test.jsonl --output results/world-mdm.jsonl
    lm-latent-eval compare results/world-mdm.jsonl results/world-causal.jsonl

The twin has the diffusion model's tokenizer and sizes and is trained by the same
trainer; it reads from left to right, and its texts end with a token that is paid. Its
estimates are written beside its directory, as ``estimate`` writes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoTokenizer,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.latent import Normalization
from lm_latent_eval.networks.network import Network
from lm_latent_eval.report.numbers import table
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.files import score_file
from lm_latent_eval.scoring.records import TASK, Record
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.training.options import Options
from lm_latent_eval.training.supervised import Part, Trainer, only_trainer
from lm_latent_eval.wrappers.mdm.training import encoded


def nats(model: Any, items: Sequence[Sequence[int]], end: int) -> Tensor:
    """Return what texts and their ends cost, (B,) nats; texts begin with an end."""
    width = max(map(len, items)) + 1
    inputs = torch.tensor([[end, *i, *[end] * (width - len(i) - 1)] for i in items])
    lengths = torch.tensor([len(item) + 1 for item in items])
    inside = torch.arange(width) < lengths[:, None]
    targets = inputs.roll(-1, 1)
    targets[torch.arange(len(items)), lengths - 1] = end
    logits = model(input_ids=inputs, attention_mask=inside.long()).logits
    each = cross_entropy(
        logits.mT.double(), targets.masked_fill(~inside, -100), reduction="none"
    )
    return each.sum(-1)


def train(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Train a decoder of the diffusion model's sizes."""
    like = AutoConfig.from_pretrained(args.mdm, trust_remote_code=False)
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    marks = ("pad", "bos", "eos", "cls", "sep")
    config = ModernBertDecoderConfig(
        **{name: getattr(like, name) for name in same},
        **{f"{mark}_token_id": getattr(like, f"{mark}_token_id") for mark in marks},
        num_attention_heads=like.num_attention_heads,
        max_position_embeddings=like.max_position_embeddings,
        layer_types=["full_attention"] * like.num_hidden_layers,
    )
    torch.manual_seed(0)
    model = ModernBertDecoderForCausalLM(config)
    most = like.max_position_embeddings - 1
    texts, dev = (
        encoded(tokenizer, read_texts(path), most) for path in (args.data, args.dev)
    )

    def loss(items: Sequence[list[int]]) -> Tensor:
        return nats(model, items, like.eos_token_id).sum()

    with only_trainer(args.output):
        Trainer(
            {"p": Part(model, loss)},
            size=lambda item: len(item) + 1,
            options=Options(epochs=args.epochs),
            directory=args.output,
        ).run(texts, dev)
        model.eval().save_pretrained(args.output)
        tokenizer.save_pretrained(args.output)
    return model


@dataclass(frozen=True)
class Causal:
    """A ``TextScorer`` of whole texts."""

    network: Network
    normalization = Normalization.BELOW_ONE

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the numbers depend on."""
        return {
            "model": "causal",
            "checkpoint": self.network.digest,
            "estimator": "exact",
            "tokens_are": "tokens, and the end",
            "mass": str(self.normalization),
        }

    @torch.inference_mode()
    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of each text and its end."""
        network = self.network
        end = network.tokenizer.eos_token_id
        for query in queries:
            ids = network.tokenizer.encode(query.text, add_special_tokens=False)
            if len(ids) >= network.max_length:
                raise ValueError(f"{query.name}: more than {network.max_length} tokens")
            log_p = -float(nats(network.model, [ids], end)[0])
            estimate = Estimate.exact(log_p, num_tokens=len(ids) + 1)
            yield Answer(query.index, estimate, query.name)


def main() -> None:
    """Train the twin, or go on, and score the test texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("mdm", "data", "dev", "test", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.mdm, trust_remote_code=False)
    scorer = Causal(Network.of(train(args, tokenizer), tokenizer))
    beside = args.output.with_name(f"{args.output.name}.jsonl")
    items = score_file(scorer, read_texts(args.test), beside)  # type: ignore[arg-type]
    print(table(Record(TASK, scorer.fingerprint, items)))


if __name__ == "__main__":
    main()
