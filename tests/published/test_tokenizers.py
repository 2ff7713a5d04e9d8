"""Published tokenizers: sums over their tokenizations, against dynamic programming.

A network of one layer that reads the last two tokens alone, so that the sum over
tokenizations goes from place to place in the string, with a sum for each pair.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from scipy.special import stdtrit
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lm_latent_eval.inference.discrete import DEGREES
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests.published.folders import TOKENIZERS, tokenizer
from tests.wrappers import asking

pytestmark = pytest.mark.nightly
SHORT = ("The cat", "é 日本", "a\n\nb")
MIXED = "Don't stop: naïve café, 日本語 😀  two  spaces\n\nand ends.\tTab: étés,\n"
"""78 bytes."""
SEEDS, LARGE = 15, 50_000
"""Networks of a tokenizer; three of those that have more tokens."""
ROUNDING = 1e-6
"""Nats: rotations of a place, in float32, tell places apart that differ alike."""
REACH = float(stdtrit(DEGREES, 0.975))
"""Half-width of a 95 % interval over its standard error."""


@pytest.fixture(scope="module")
def opened(published, tmp_path_factory):
    """Return a function from a tokenizer's name to a network, and what tokens write."""

    @cache
    def opened(name):
        found = published(TOKENIZERS[name])
        if "Mistral" in name:
            published("python/mistral_common")
        folder = tokenizer(found, tmp_path_factory.mktemp("tokenizer"))
        loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return SegmentedLM(network(loaded)), written(loaded)

    return opened


def network(loaded) -> Network:
    """Return a network that reads the last two tokens alone."""
    config = MistralConfig(
        vocab_size=len(loaded),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = MistralForCausalLM(config).double().eval()
    start = loaded.bos_token_id
    return Network.of(
        model,
        loaded,
        max_length=128,
        prefix_token=start if start is not None else loaded.eos_token_id or 0,
        adds_special=False,  # Gemma's and Mistral's put a second start before a text
    )


def draw(model: SegmentedLM, seed: int) -> None:
    """Draw all weights but those of norms."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.network.model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.5)


def written(loaded) -> tuple[dict[bytes, list[int]], ...]:
    """Bytes -> tokens that write them: at the beginning of a text, and later."""
    tables: tuple[dict[bytes, list[int]], ...] = ({}, {})
    for token, both in enumerate(pieces(loaded)):
        for table, piece in zip(tables, both or (), strict=False):
            table.setdefault(piece, []).append(token)
    return tables


def pieces(loaded) -> list[tuple[bytes, bytes] | None]:
    """What each token writes at the beginning and later; None of special ones."""
    backend, special = loaded.backend_tokenizer, set(loaded.all_special_ids)
    special |= {t for t, added in loaded.added_tokens_decoder.items() if added.special}
    added = loaded.added_tokens_decoder
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    byte_level = "ByteLevel" in str(backend.decoder)
    prefixed = "Strip" in str(backend.decoder)

    def written(token: int) -> tuple[bytes, bytes] | None:
        name = loaded.convert_ids_to_tokens(token)
        if token in special or name is None:
            return None
        if byte_level:
            plain = (
                str(added[token]).encode()
                if token in added
                else bytes(letters[letter] for letter in name)
            )
            return plain, plain
        if name.startswith("<0x") and len(name) == 6:
            plain = bytes([int(name[3:5], 16)])
            return plain, plain
        later = name.replace("▁", " ").encode()
        return later[1:] if prefixed and later[:1] == b" " else later, later

    return [written(token) for token in range(len(loaded))]


@torch.inference_mode()
def exact(model: SegmentedLM, written, text: str) -> float:
    """Log of the sum over tokenizations: alpha over places and last two tokens."""
    target, network = text.encode(), model.network
    onward: list[list[tuple[int, int]]] = [
        [
            (token, end)
            for end in range(begin + 1, len(target) + 1)
            for token in written[begin > 0].get(target[begin:end], ())
        ]
        for begin in range(len(target))
    ]
    alpha: list[dict[tuple[int, ...], float]] = [{} for _ in range(len(target) + 1)]
    alpha[0][network.prefix_token,] = 1.0
    for begin, edges in enumerate(onward):
        states, tokens = [*alpha[begin]], [token for token, _ in edges]
        for first in range(0, len(states), 16):
            some = states[first : first + 16]
            logits = network.model(torch.tensor(some), logits_to_keep=1).logits[:, -1]
            for state, row in zip(some, logits.softmax(-1)[:, tokens], strict=True):
                for (token, end), p in zip(edges, row.tolist(), strict=True):
                    after, more = (state[-1], token), alpha[begin][state] * p
                    alpha[end][after] = alpha[end].get(after, 0.0) + more
    return math.log(math.fsum(alpha[-1].values()))


def estimate(model: SegmentedLM, text: str, **options):
    return asking.estimate(model.scorer(options, quiet=True), text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_tokenization_is_summed(opened, name):
    model, written = opened(name)
    draw(model, 0)
    for text in SHORT:
        found = estimate(model, text, estimator="exact")
        truth = exact(model, written, text)
        assert found.log_evidence == pytest.approx(truth, abs=ROUNDING)
        one = estimate(model, text, estimator="canonical")
        assert one.log_evidence < found.log_evidence, text


def test_printed_errors_are_true(opened):
    assert len(MIXED.encode()) == 78
    texts = printed = refuted = 0
    for name in TOKENIZERS:
        model, written = opened(name)
        for seed in range(SEEDS if len(written[1]) < LARGE else 3):
            draw(model, seed)
            found = estimate(model, MIXED)
            texts += 1
            if found.stderr is not None:
                printed += 1
                error = found.log_evidence - exact(model, written, MIXED)
                refuted += abs(error) > REACH * found.stderr + ROUNDING
    print(f"{texts} networks, {printed} errors printed, {refuted} refuted")
    assert printed >= 0.75 * texts
    assert refuted <= 0.05 * printed
