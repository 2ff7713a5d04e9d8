"""Tiny networks that predict masked tokens, of every kind, and their orders listed."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.mdm.targets import TargetTokens, answer_all
from lm_latent_eval.wrappers.mdm.unmasking import Unmasking
from tests import tiny_causal
from tests.means import uniform

ANY_ORDER = Unmasking()
PAD, MASK, UNKNOWN, BEGIN, END = range(5)
WORDS = ("the", "fox", "saw", "Ada", "Bo", ".", "a")
VOCABULARY = ("[PAD]", "[MASK]", "[UNK]", "[CLS]", "[SEP]", *WORDS)
SIZE = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 20,
    "pad_token_id": PAD,
}
MARKS = {
    f"{name}_token_id": number
    for name, number in (("bos", BEGIN), ("cls", BEGIN), ("eos", END), ("sep", END))
}


def tokenizer(
    *, framed: bool = False, mask: bool = True, start: bool = False
) -> PreTrainedTokenizerFast:
    """Words of a few; ``framed`` puts marks around a text, as BERT's does.

    One with ``start`` has a token for that and does not put it before texts, as Dream's
    does not.
    """
    numbers = {word: n for n, word in enumerate(VOCABULARY)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    if framed:
        marks = [("[CLS]", BEGIN), ("[SEP]", END)]
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=marks
        )
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    named |= {"mask_token": "[MASK]"} if mask else {}
    named |= {"bos_token": "[CLS]"} if start else {}
    return tiny_causal.fast(words, **named)


def lopsided(model: nn.Module, seed: int = 0, spread: float = 0.8) -> nn.Module:
    """Draw large weights, so that what is revealed matters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator) * spread
        parameter.data = drawn.to(parameter.dtype)
    return model.double().eval().requires_grad_(False)


def masked_lm(name: str, **more):
    """Return a new network of transformers that predicts masked tokens."""
    config = getattr(transformers, f"{name}Config")(**SIZE | more)
    return getattr(transformers, f"{name}ForMaskedLM")(config)


KINDS = {
    "bert": lambda: masked_lm("Bert"),
    "modernbert": lambda: masked_lm("ModernBert", **MARKS),
    "roberta": lambda: masked_lm("Roberta", max_position_embeddings=24),
}


def network(kind: str = "bert", *, framed: bool = False) -> Network:
    model = lopsided(KINDS[kind]())
    return Network.of(model, tokenizer(framed=framed), max_length=20)


def denoiser(model: nn.Module | None = None, **how) -> MaskedReader:
    model = lopsided(KINDS["bert"]()) if model is None else model
    return MaskedReader(
        lambda tokens: model(input_ids=tokens).logits,
        MASK,
        0,
        len(VOCABULARY),
        torch.device("cpu"),
        **how,
    )


def scorer_of(logits, **options):
    """Return what scores by a function from token ids to scores."""
    model = MaskedDiffusion.of_function(
        logits, tokenizer(), version="tiny", max_length=20
    )
    return model.scorer(options, quiet=True)


def peaked(seed: int):
    """Return the scores of a network of random weights whose predictions are sure."""
    torch.manual_seed(seed)
    model = masked_lm("Bert", initializer_range=3.0)
    model = model.double().eval().requires_grad_(False)
    return lambda tokens: model(input_ids=tokens).logits


def numbers(seed: int):
    """Return a function that draws independent numbers of each (batch, n)."""
    return lambda batch, number: uniform(number, seed=1000 * seed + batch)


def ask(reader: MaskedReader, target: TargetTokens, asking, rule=ANY_ORDER):
    """Run one estimator of one target."""
    ((_, found),) = answer_all(reader, rule, [(target, asking)])
    return found


class Truth:
    """log p of a target under each order, one call of the network a revealed set."""

    def __init__(self, reader: MaskedReader, target: TargetTokens) -> None:
        self.reader, self.target = reader, target
        self.rows = cache(self._rows)

    @torch.no_grad()
    def _rows(self, revealed: frozenset[int]) -> torch.Tensor:
        """log p of every token at every place of the target, (L, V)."""
        target = self.target
        inner = [
            token if i in revealed else MASK for i, token in enumerate(target.tokens)
        ]
        tokens = torch.tensor([[*target.before, *inner, *target.after]])
        logits = self.reader.scores(tokens)[0]
        logits = logits[len(target.before) :][: len(target)].clone()
        logits[:, MASK] = -torch.inf
        return logits.log_softmax(-1)

    def log_p(self, order) -> float:
        total, revealed = 0.0, frozenset()
        for place in order:
            total += float(self.rows(revealed)[place, self.target.tokens[place]])
            revealed |= {place}
        return total

    def all_orders(self) -> torch.Tensor:
        orders = permutations(range(len(self.target)))
        return torch.tensor([self.log_p(o) for o in orders], dtype=torch.float64)

    @property
    def exact(self) -> float:
        each = self.all_orders()
        return float(each.logsumexp(0)) - math.log(len(each))
