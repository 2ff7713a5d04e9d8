"""Published tokenizers: sums over their tokenizations, against dynamic programming.

A network of zero weights gives the next token the same probabilities whatever comes
before it, so that the sum over tokenizations is a product of matrices over bytes.
"""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.published.folders import TOKENIZERS, tokenizer

pytestmark = pytest.mark.nightly
SHORT = ("The cat", "é 日本", "a\n\nb")


@pytest.fixture(scope="module", params=TOKENIZERS)
def loaded(request, published, tmp_path_factory):
    """A tokenizer as transformers loads it, from whatever file it was published in."""
    found = published(TOKENIZERS[request.param])
    if "Mistral" in request.param:
        published("python/mistral_common")
    folder = tokenizer(found, tmp_path_factory.mktemp("tokenizer"))
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@pytest.fixture(scope="module")
def blind(loaded):
    """A network that reads nothing, and p of what a token writes, first and later."""
    model = network(loaded)
    start = torch.tensor([[model.prefix_token]])
    p = model.model(start).logits[0, -1].softmax(-1).tolist()
    tables: tuple[dict[bytes, float], ...] = ({}, {})
    for token, both in enumerate(pieces(loaded)):
        for table, piece in zip(tables, both or (), strict=False):
            table[piece] = table.get(piece, 0.0) + p[token]
    return model, tables


def network(loaded):
    """Return a random network for a tokenizer, blind to what comes before."""
    model = tiny_causal.model(len(loaded), positions=128)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.normal_(0, 1)
    start = loaded.bos_token_id
    return Network.of(
        model,
        loaded,
        max_length=128,
        prefix_token=start if start is not None else loaded.eos_token_id or 0,
        adds_special=False,  # Gemma's and Mistral's put a second start before a text
    )


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


def exact(tables, text: str) -> float:
    """Log of the sum over tokenizations: alpha over the places of the bytes."""
    target = text.encode()
    alpha = [1.0] + [0.0] * len(target)
    for end in range(1, len(target) + 1):
        alpha[end] = math.fsum(
            alpha[begin] * tables[begin > 0].get(target[begin:end], 0.0)
            for begin in range(end)
        )
    return math.log(alpha[-1])


def estimate(model: Network, text: str, **options):
    scorer = SegmentedLM(model).scorer(options, quiet=True)
    [answer] = scorer.score_texts([Query(0, "text", text)])
    return answer.estimate


def test_every_tokenization_is_summed(blind):
    model, tables = blind
    for text in SHORT:
        found = estimate(model, text, estimator="exact")
        assert found.log_evidence == pytest.approx(exact(tables, text), abs=1e-9)
        one = estimate(model, text, estimator="canonical")
        assert one.log_evidence < found.log_evidence, text
