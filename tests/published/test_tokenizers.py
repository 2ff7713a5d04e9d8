"""Published tokenizers: sums over their tokenizations, against dynamic programming.

A network of zero weights gives the next token the same probabilities whatever comes
before it, so that the sum over tokenizations is a product of matrices over bytes.
"""

from __future__ import annotations

import math
import sys

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.network import Network
from lm_latent_eval.wrappers.tokens.modeling import SegmentedLM
from tests.published.folders import FOLDER, TOKENIZERS, tokenizer

pytestmark = pytest.mark.slow
SHORT = ("The cat", "é 日本", "a\n\nb", "x = 3.14")
LONG = "The miller’s cat sat on 1024 naïve 日本 mats 🙂,  twice.\n\nThen it left."


@pytest.fixture(scope="module", params=TOKENIZERS)
def named(request, published, tmp_path_factory):
    found = published(TOKENIZERS[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(FOLDER / "python")])
        folder = tokenizer(found, tmp_path_factory.mktemp("tokenizer"))
        return request.param, AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        )


def network(loaded, *, blind: bool):
    """Return a random network for a tokenizer, blind to what comes before or not."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(loaded),
        n_positions=128,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.4)
        if blind:
            model.transformer.ln_f.weight.zero_()
            model.transformer.ln_f.bias.normal_(0, 1)
    start = loaded.bos_token_id
    return Network.of(
        model,
        loaded,
        max_length=128,
        prefix_token=start if start is not None else loaded.eos_token_id or 0,
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


def exact(loaded, model: Network, text: str) -> float:
    """Log of the sum over tokenizations: alpha over the places of the bytes."""
    target = text.encode()
    start = torch.tensor([[model.prefix_token]])
    log_p = model.model(start).logits[0, -1].log_softmax(-1).tolist()
    by_piece: list[dict[bytes, float]] = [{}, {}]
    for token, both in enumerate(pieces(loaded)):
        for place, piece in enumerate(both or ()):
            if piece and piece in target:
                mass = by_piece[place].get(piece, 0.0)
                by_piece[place][piece] = mass + math.exp(log_p[token])
    alpha = [1.0] + [0.0] * len(target)
    for end in range(1, len(target) + 1):
        for begin in range(end):
            table = by_piece[begin > 0]
            alpha[end] += alpha[begin] * table.get(target[begin:end], 0.0)
    return math.log(alpha[-1])


def estimate(model: Network, text: str, **options):
    scorer = SegmentedLM(model).scorer(options, quiet=True)
    [answer] = scorer.score_texts([Query(0, "text", text)])
    return answer.estimate


def test_every_tokenization_is_summed(named):
    name, loaded = named
    model = network(loaded, blind=True)
    for text in SHORT:
        found = estimate(model, text, estimator="exact")
        assert found.log_evidence == pytest.approx(exact(loaded, model, text), abs=1e-9)
        one = estimate(model, text, estimator="canonical")
        assert one.log_evidence < found.log_evidence, (name, text)


def test_draws_agree_with_the_sum(named):
    _, loaded = named
    model = network(loaded, blind=True)
    wanted = exact(loaded, model, LONG)
    found = estimate(model, LONG, estimator="is", num_samples=300)
    assert 0 < found.draws_stderr < 0.5
    assert abs(found.log_evidence - wanted) < 5 * found.draws_stderr


def test_a_network_that_reads_what_comes_before(named):
    _, loaded = named
    model = network(loaded, blind=False)
    whole = estimate(model, "The cat", estimator="exact").log_evidence
    drawn = estimate(model, "The cat", estimator="is", num_samples=400)
    assert abs(drawn.log_evidence - whole) < 5 * drawn.draws_stderr
    searched = estimate(model, "The cat", estimator="beam", num_samples=400)
    assert searched.log_evidence <= whole + 1e-9
