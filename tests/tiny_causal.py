"""Tiny causal LMs with tokenizers of every kind, and their token sequences, listed."""

import itertools
import math
from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_latent_eval.networks.network import Network

END, ODD = "<end>", "<odd>"
"""The end of a text, before one as well, and a token that is no text."""


def numbered(pieces):
    """Return the vocabulary of some tokens, the special ones last."""
    return {piece: n for n, piece in enumerate([*pieces, END, ODD])}


def byte_level(pieces, merges):
    built = Tokenizer(models.BPE(vocab=numbered(pieces), merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return wrapped(built)


def letters():
    """Byte-level: two letters, some of their runs."""
    merges = [("a", "b"), ("b", "a"), ("a", "ab")]
    return byte_level(["a", "b", "ab", "ba", "aab"], merges)


def spaced():
    """As SentencePiece: a space before every text, which its decoder drops again."""
    pieces = ["▁", "a", "b", "▁a", "ab"]
    merges = [("▁", "a"), ("a", "b")]
    built = Tokenizer(models.BPE(vocab=numbered(pieces), merges=merges))
    built.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(built)


UNIGRAM = [("a", -1.0), ("b", -1.7), ("ab", -1.3), ("ba", -2.9), ("aab", -2.2)]
"""Tokens and their log-frequencies."""


def unigram():
    """Tokens with frequencies of their own."""
    marks = [(END, 0.0), (ODD, 0.0)]
    built = Tokenizer(models.Unigram([*UNIGRAM, *marks], unk_id=len(UNIGRAM) + 1))
    built.decoder = decoders.Fuse()
    return wrapped(built)


def words():
    """WordPiece: whole words and their ends."""
    vocab = numbered(["a", "b", "##a", "##b", "ab"])
    built = Tokenizer(models.WordPiece(vocab=vocab, unk_token=ODD))
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(cleanup=False)
    return wrapped(built)


def fast(tokenizer, **special):
    """Return a tokenizer of the ``tokenizers`` library as one of transformers."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def wrapped(tokenizer):
    """Make it one of transformers', whose texts begin and end with ``END``."""
    return fast(tokenizer, eos_token=END, additional_special_tokens=[ODD])


def model(vocab_size, *, positions=64, seed=0, spread=1.5, dtype=torch.float64):
    """Return a GPT-2 whose next tokens depend on all before, lopsidedly."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=positions,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    network = GPT2LMHeadModel(config).to(dtype).eval()
    torch.manual_seed(seed)  # versions of transformers draw more or less before
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.25)
        network.transformer.wte.weight.normal_(0, spread / 4)
    return network


def of_bytes(folder, **more):
    """Write a network whose tokens are the bytes; return the folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return save(folder, byte_level(alphabet, []), **more)


def save(folder, tokenizer, network=None, **more):
    """Write a network, by default a tiny one, and its tokenizer; return the folder."""
    (network or model(len(tokenizer), **more)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def network(tokenizer, *, max_length=None, **more):
    """Return a tiny network for a tokenizer."""
    built = model(len(tokenizer), **more)
    return Network.of(built, tokenizer, max_length=max_length)


class Listed:
    """Every token sequence of at most ``longest`` tokens, and what it decodes to."""

    def __init__(self, network, longest, given=None):
        """List what follows given tokens; None is what texts follow."""
        self.network, self.tokenizer = network, network.tokenizer
        self.given = given or (network.prefix_token,)
        special = set(self.tokenizer.all_special_ids)
        tokens = [t for t in range(len(self.tokenizer)) if t not in special]
        self.sequences = [
            z
            for length in range(longest + 1)
            for z in itertools.product(tokens, repeat=length)
        ]
        decode = self.tokenizer.backend_tokenizer.decoder.decode
        name = self.tokenizer.convert_ids_to_tokens
        self.strings = {z: decode(name([*z])) if z else "" for z in self.sequences}

    @cache  # noqa: B019
    def following(self, z):
        """Log p of every next token, of the whole of it in one pass."""
        ids = torch.tensor([[*self.given, *z]])
        with torch.no_grad():
            return self.network.model(ids).logits[0, -1].log_softmax(-1)

    def p(self, z, *after):
        """p of a sequence, and tokens after it."""
        z = (*z, *after)
        log_p = (self.following(z[:n])[token] for n, token in enumerate(z))
        return math.exp(math.fsum(log_p))

    def segmentations(self, s):
        return [z for z in self.sequences if self.strings[z] == s]

    def border(self, s, *after):
        return sum(self.p(z, *after) for z in self.segmentations(s))

    def end(self, s):
        return self.border(s, self.tokenizer.eos_token_id)

    def lost(self, s):
        return self.border(s, self.tokenizer.convert_tokens_to_ids(ODD))

    def covers(self, s):
        """Every sequence whose last token is the first by which the string is there."""
        return [
            z
            for z in self.sequences
            if z
            and self.strings[z].startswith(s)
            and len(self.strings[z[:-1]]) < len(s)
        ]

    def prefix(self, s):
        return sum(map(self.p, self.covers(s))) if s else 1.0
