"""What ``speed.py`` measures: models with random weights, texts and settings by name.

Sizes are those of the papers. Weights are random, but for what decides how much there
is to do: how often something is mentioned, and how peaked the proposal is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.networks.network import Network
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from lm_latent_eval.wrappers.mdm.targets import TargetTokens
from lm_latent_eval.wrappers.tokens.model import SegmentedLM

WORDS, SEED = 10_000, 0


@dataclass(frozen=True)
class Workload:
    """A model, a proposal and texts."""

    model: str
    """A name of ``MODELS``."""
    proposal: str
    temperature: float = 1.0
    num_texts: int = 1
    length: int = 199


def texts(number: int, length: int) -> TokenBatch:
    """Return texts of random words."""
    dice = random.Random(SEED)
    words = [[dice.randrange(4, WORDS) for _ in range(length)] for _ in range(number)]
    return TokenBatch.collate(words, first=START)


def kglm() -> KGLM:
    """Build a KGLM over 10,000 entities with 20 edges each, of which few are walked."""
    dice = random.Random(SEED)
    names = [f"entity {i}" for i in range(9_999)]
    graph = KnowledgeGraph.build(
        [
            (name, f"relation {dice.randrange(500)}", dice.choice(names))
            for name in names
            for _ in range(20)
        ],
        {
            n: [[dice.randrange(4, WORDS) for _ in range(2)] for _ in range(2)]
            for n in names
        },
        max_aliases=4,
        max_alias_words=8,
        inverse=False,
    )
    config = KGLMConfig(
        vocab_size=WORDS,
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        token_embedding_dim=300,
        entity_embedding_dim=100,
        hidden_size=300,
        num_layers=3,
        proposals=["peeking"],
    )
    model = KGLM(config, graph)
    for trunk in (model.generative.trunk, model.proposals["peeking"]):
        trunk.mention.bias.data = torch.tensor([2.2, 0.0, 0.0, 0.3])
    return model


def entitynlm(score_of_none: float) -> EntityNLM:
    """Build an EntityNLM; the higher the score, the rarer are mentions."""
    config = EntityNLMConfig(
        vocab_size=WORDS,
        embedding_dim=300,
        hidden_size=300,
        num_layers=1,
        max_mention_length=100,
        tie_weights=False,
    )
    model, batch = EntityNLM(config), texts(1, 199)
    for trunk in (model.generative.trunk, *model.proposals.values()):
        trunk.length.bias.data = -0.9 * torch.arange(100.0)
        hidden, _ = trunk.read(batch.inputs, batch.length, None)
        mean = hidden[0].mean(0)
        trunk.mention.weight.data[0] += score_of_none * mean / mean.dot(mean)
    return model


def rnng() -> RNNG:
    """Build an RNNG as the original's weights begin."""
    config = RNNGConfig(
        vocab_size=WORDS,
        hidden_size=256,
        proposal_size=256,
        num_layers=2,
        sentence_ends=False,
    )
    model = RNNG(config)
    for weight in model.parameters():
        torch.nn.init.uniform_(weight, -0.1, 0.1)
    return model


MODELS: dict[str, Callable[[], Pretrained]] = {
    "kglm": kglm,
    "entitynlm": lambda: entitynlm(3.0),
    "entitynlm, untrained": lambda: entitynlm(0.0),
    "rnng": rnng,
}
WORKLOADS = {
    "kglm": Workload("kglm", "peeking"),
    "entitynlm": Workload("entitynlm", "adapted"),
    "entitynlm, dense": Workload("entitynlm, untrained", "peeking"),
    "rnng, even": Workload("rnng", "crf", 2.0, num_texts=10, length=20),
    "rnng, peaked": Workload("rnng", "crf", 0.002, num_texts=10, length=20),
}
"""``dense``: two tokens of three are mentions. ``even``: all trees are about as likely
under q; ``peaked``: a few have most of it."""


def build(workload: Workload) -> tuple[Pretrained, TokenBatch]:
    """Return a workload's model and texts."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        model = MODELS[workload.model]().eval().requires_grad_(False)
    return model, texts(workload.num_texts, workload.length)


@dataclass(frozen=True)
class Segmented:
    """A GPT-2 of random weights whose tokenizations are summed over."""

    vocabulary: int
    width: int
    layers: int
    num_tokens: int = 376


SEGMENTED = {
    "tokens, small": Segmented(600, 24, 2),
    "tokens, large": Segmented(8000, 384, 6),
}


def segmented(workload: Segmented) -> tuple[SegmentedLM, str]:
    """Return a workload's model, and a text of words of random syllables."""
    dice = random.Random(SEED)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = [
        "".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(5000)
    ]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    corpus = " ".join(dice.choices(words, weights, k=50_000))
    trained, end = ByteLevelBPETokenizer(), "<|endoftext|>"
    trained.train_from_iterator(
        [corpus], workload.vocabulary, special_tokens=[end], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, eos_token=end
    )
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=workload.width,
        n_layer=workload.layers,
        n_head=workload.width // 12 if workload.width < 64 else workload.width // 64,
        n_positions=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    network = Network.of(GPT2LMHeadModel(config).eval(), tokenizer)
    tokens = tokenizer.encode(corpus)[: workload.num_tokens]
    return SegmentedLM(network), tokenizer.decode(tokens)


@dataclass(frozen=True)
class Denoised:
    """A BERT of random weights that reads masked texts."""

    vocabulary: int
    width: int
    layers: int
    num_texts: int
    num_tokens: int = 32


DENOISED = {
    "masked, small": Denoised(600, 24, 2, 8),
    "masked, large": Denoised(8000, 384, 6, 2),
}


def denoised(
    workload: Denoised, batch_size: int
) -> tuple[MaskedReader, list[TargetTokens]]:
    """Return a workload's network, and texts of random tokens."""
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=workload.vocabulary,
        hidden_size=workload.width,
        num_hidden_layers=workload.layers,
        num_attention_heads=workload.width // (12 if workload.width < 64 else 64),
        intermediate_size=4 * workload.width,
    )
    network = BertForMaskedLM(config).eval()
    reader = MaskedReader(
        lambda tokens: network(tokens).logits,
        mask=1,
        shift=0,
        num_scores=workload.vocabulary,
        device=torch.device("cpu"),
        batch_size=batch_size,
    )
    size = workload.num_texts, workload.num_tokens
    tokens = torch.randint(5, workload.vocabulary, size).tolist()
    return reader, [TargetTokens((), tuple(row), ()) for row in tokens]
