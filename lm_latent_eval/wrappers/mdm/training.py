"""Training of a small masked diffusion transformer on text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    __version__,
)

from lm_latent_eval.devices import moved
from lm_latent_eval.training.options import MDMSize, Options
from lm_latent_eval.training.supervised import Part, Trainer, only_trainer
from lm_latent_eval.wrappers.mdm.estimators import mask_counts
from lm_latent_eval.wrappers.mdm.source import Lengths

PAD, MASK, END = "<pad>", "<mask>", "<end>"


def train_mdm(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    size: MDMSize | None = None,
    options: Options | None = None,
) -> PreTrainedModel:
    """Train a network to predict masked tokens, and write its directory.

    What is minimised is the bound that ``estimator=elbo`` estimates. Scores are shifted
    (``logit_shift=1``): those of a token stand at the place before it, whose token, if
    it is revealed, then tells the next one without attention. A small network that has
    to find its neighbours first stays at the frequencies of tokens for a thousand
    updates. How many tokens texts have is counted, and written beside the network.

    Args:
        texts: Training text.
        dev: Development text, for the learning rate and for stopping.
        directory: Where network, tokenizer and lengths go. An interrupted run there is
            resumed.
        size: How large the network is.
        options: How to train.

    Raises:
        ValueError: If a list has no text, or transformers is older than 5.17.
    """
    size, options = size or MDMSize(), options or Options()
    tokenizer = train_tokenizer(texts, size.vocab_size)
    # One place is for the token before every text.
    items = [encoded(tokenizer, some, size.max_length - 1) for some in (texts, dev)]
    if not all(items):
        raise ValueError("training and development text must have words")
    torch.manual_seed(options.seed)
    model = ModernBertForMaskedLM(_configuration(tokenizer, size))
    mask, start = (tokenizer.get_vocab()[mark] for mark in (MASK, END))

    def loss(items: Sequence[list[int]]) -> Tensor:
        return negative_bound(model, items, mask, start)

    moved(model, options.device).tie_weights()  # which some devices copy one by one
    with only_trainer(directory):
        trainer = Trainer(
            {"p": Part(model, loss)},
            size=len,
            options=options,
            directory=directory,
            about={"model": "mdm", **vars(size)},
        )
        trainer.run(*items)
        moved(model, "cpu").eval()
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        counted = encoded(tokenizer, texts, None)
        empty = [0] * (len(texts) - len(counted))
        Lengths.train([*map(len, counted), *empty]).save(directory)
    return model


def negative_bound(
    model: PreTrainedModel, items: Sequence[Sequence[int]], mask: int, start: int
) -> Tensor:
    r"""Estimate the negative bound of B texts, nats, by one pass of each, summed.

    .. math:: \sum_b \frac{L_b}{l_b} \sum_{i \in M_b} -\log p(x_i \mid x_{\neg M_b})

    Counts are systematic over the batch. Where the model is evaluated, masks are the
    same each time, so that losses of epochs compare.

    Args:
        model: Predicts the token after each place; in training or not.
        items: Tokens of each text, none without.
        mask: The token that masks.
        start: The token before every text.
    """
    generator = torch.Generator()
    generator.manual_seed(int(torch.randint(2**62, ())) if model.training else 0)
    lengths = torch.tensor([len(item) for item in items])
    ranks = torch.randperm(len(items), generator=generator)
    u = float(torch.rand((), generator=generator))
    counts = torch.stack(
        [
            mask_counts(int(length), len(items), u)[rank]
            for length, rank in zip(lengths, ranks, strict=True)
        ]
    )
    width = int(lengths.max())
    tokens = torch.tensor([[*item, *[0] * (width - len(item))] for item in items])
    inside = torch.arange(width) < lengths[:, None]
    noise = torch.rand(tokens.shape, generator=generator).masked_fill(~inside, 2.0)
    masked = noise.argsort(1).argsort(1) < counts[:, None]
    logits = model(
        input_ids=pad(tokens.masked_fill(masked, mask), (1, 0), value=start).to(
            model.device
        ),
        attention_mask=pad(inside.long(), (1, 0), value=1).to(model.device),
    ).logits[:, :-1]
    rows = logits[masked.to(model.device)].index_fill(
        -1, torch.tensor([mask], device=model.device), -torch.inf
    )
    nats = cross_entropy(rows, tokens[masked].to(model.device), reduction="none")
    weight = (lengths / counts)[masked.nonzero()[:, 0]].to(nats)
    return (nats * weight).sum()


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn subwords of bytes, which spell every string and only one each.

    Args:
        texts: Training text.
        vocab_size: Tokens, 256 bytes and the marks among them.
    """
    subwords = Tokenizer(models.BPE())
    subwords.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    subwords.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, MASK, END],
        show_progress=False,
    )
    subwords.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=subwords, pad_token=PAD, mask_token=MASK, eos_token=END
    )


def encoded(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], most: int | None
) -> list[list[int]]:
    """Return the tokens of texts that have any, those of long ones in pieces."""
    found = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        step = most or max(1, len(ids))
        found += [ids[first : first + step] for first in range(0, len(ids), step)]
    return found


def _configuration(
    tokenizer: PreTrainedTokenizerFast, size: MDMSize
) -> ModernBertConfig:
    end = tokenizer.eos_token_id
    try:
        config = ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=size.hidden_size,
            intermediate_size=2 * size.hidden_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            max_position_embeddings=size.max_length,
            layer_types=["full_attention"] * size.num_layers,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=end,
            eos_token_id=end,
            cls_token_id=end,
            sep_token_id=end,
        )
    except StrictDataclassError as error:
        raise ValueError(
            f"transformers {__version__} refuses a ModernBERT whose layers all read "
            "the whole text; update it: pip install 'transformers>=5.17'"
        ) from error
    config.logit_shift = 1
    return config
