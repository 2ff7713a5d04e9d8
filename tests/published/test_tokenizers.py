"""Published tokenizers: sums over their tokenizations, against dynamic programming.

A network whose layers add nothing reads the last token alone, so that the sum over
tokenizations goes from place to place in the string, with a sum for each last token.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import stdtrit
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lm_latent_eval.inference.discrete import DEGREES
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.published.folders import TOKENIZERS, tokenizer
from tests.wrappers import asking

pytestmark = pytest.mark.nightly
SHORT = ("The cat", "é 日本", "a\n\nb")
MIXED = "Don't stop: naïve café, 日本語 😀  two  spaces\n\nand ends.\tTab: étés,\n"
"""78 bytes."""
SEEDS = 15
REACH = float(stdtrit(DEGREES, 0.975))
"""Half-width of a 95 % interval over its standard error."""


@pytest.fixture(scope="module", params=TOKENIZERS)
def loaded(request, published, tmp_path_factory):
    """A tokenizer as transformers loads it, from whatever file it was published in."""
    found = published(TOKENIZERS[request.param])
    if "Mistral" in request.param:
        published("python/mistral_common")
    folder = tokenizer(found, tmp_path_factory.mktemp("tokenizer"))
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@pytest.fixture(scope="module")
def model(loaded):
    """A network that reads the last token alone."""
    network = tiny_causal.model(len(loaded), positions=128)
    with torch.no_grad():
        network.transformer.wpe.weight.zero_()
        for layer in network.transformer.h:
            for out in (layer.attn.c_proj, layer.mlp.c_proj):
                out.weight.zero_()
                out.bias.zero_()
    start = loaded.bos_token_id
    return SegmentedLM(
        Network.of(
            network,
            loaded,
            max_length=128,
            prefix_token=start if start is not None else loaded.eos_token_id or 0,
            adds_special=False,  # Gemma's and Mistral's put a second start before
        )
    )


def draw(model: SegmentedLM, seed: int) -> None:
    """Draw the weights of the last layer."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.network.model.transformer.ln_f.parameters():
            weight.normal_(0, 1)


@pytest.fixture(scope="module")
def written(loaded):
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


def exact(model: SegmentedLM, written, text: str) -> float:
    """Log of the sum over tokenizations: alpha over places and last tokens."""
    target = text.encode()
    ends: list[dict[int, int]] = [{} for _ in range(len(target) + 1)]
    for begin in range(len(target)):
        for end in range(begin + 1, len(target) + 1):
            for token in written[begin > 0].get(target[begin:end], ()):
                ends[end][token] = begin
    alpha: list[dict[int, float]] = [{} for _ in ends]
    alpha[0] = {model.network.prefix_token: 1.0}
    used = [*{token for tokens in [alpha[0], *ends] for token in tokens}]
    rows = {token: n for n, token in enumerate(used)}
    with torch.inference_mode():
        p = torch.cat(
            [
                model.network.model(part[:, None]).logits[:, 0].softmax(-1)[:, used]
                for part in torch.tensor(used).split(16)
            ]
        ).tolist()
    for end, tokens in enumerate(ends):
        for token, begin in tokens.items():
            alpha[end][token] = math.fsum(
                before * p[rows[last]][rows[token]]
                for last, before in alpha[begin].items()
            )
    return math.log(math.fsum(alpha[-1].values()))


def estimate(model: SegmentedLM, text: str, **options):
    return asking.estimate(model.scorer(options, quiet=True), text)


def test_every_tokenization_is_summed(model, written):
    draw(model, 0)
    for text in SHORT:
        found = estimate(model, text, estimator="exact")
        truth = exact(model, written, text)
        assert found.log_evidence == pytest.approx(truth, abs=1e-9)
        one = estimate(model, text, estimator="canonical")
        assert one.log_evidence < found.log_evidence, text


def test_printed_errors_are_true(model, written):
    assert len(MIXED.encode()) == 78
    printed = refuted = 0
    for seed in range(SEEDS):
        draw(model, seed)
        found = estimate(model, MIXED, num_samples=32)
        if found.stderr is not None:
            printed += 1
            error = found.log_evidence - exact(model, written, MIXED)
            refuted += abs(error) > REACH * found.stderr + 1e-9
    assert printed >= 0.75 * SEEDS
    assert refuted <= 0.05 * printed
