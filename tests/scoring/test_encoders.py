"""Models whose units are no words: bytes, and the tokens of a tokenizer."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

import lm_latent_eval
from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.recurrent_lm import LSTMConfig, LSTMLanguageModel
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.encoder import ByteEncoder, SubwordEncoder
from tests.tiny_models import randomised

BYTES = ByteEncoder()


class ByteConfig(LSTMConfig):
    model_type = "tests_bytes"

    def __init__(self, **fields):
        super().__init__(**fields)


class ByteLSTM(LSTMLanguageModel):
    config_class = ByteConfig
    normalization = Normalization.ONE

    def load_encoder(self, directory):
        return BYTES


class SubwordConfig(LSTMConfig):
    model_type = "tests_subwords"

    def __init__(self, **fields):
        super().__init__(**fields)


class SubwordLSTM(LSTMLanguageModel):
    config_class = SubwordConfig
    normalization = Normalization.BELOW_ONE

    def load_encoder(self, directory):
        return SubwordEncoder.load(directory / "bpe.json", start="<s>", end="</s>")


def write(directory, kind, vocab_size, start):
    config = kind.config_class(
        vocab_size=vocab_size, embedding_dim=3, hidden_size=3, never_uttered=[start]
    )
    model = randomised(kind(config).double(), 1, 0.5).eval()
    checkpoint.save(model, None, directory, model.state_dict())
    return lm_latent_eval.load(
        directory, model=f"{__name__}:{kind.__name__}", device="cpu"
    )


def bpe() -> Tokenizer:
    tokens = ["a", "b", "ab", "<s>", "</s>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return Tokenizer(BPE(vocabulary, merges=[("a", "b")], unk_token="<unk>"))


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory):
    return write(tmp_path_factory.mktemp("bytes"), ByteLSTM, 258, BYTES.start)


@pytest.fixture(scope="module")
def of_subwords(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subwords")
    bpe().save(str(folder / "bpe.json"))
    return write(folder, SubwordLSTM, 6, 3)


def log_p(model, ids, start) -> float:
    """Straight from the model: no encoder, no scorer."""
    batch = TokenBatch.collate([ids], first=start)
    return model.log_joint(model.encode(batch), NO_LATENT).item()


@pytest.mark.parametrize("text", ["", "a fox", "naïve €", "\0\x02"])
def test_bytes_are_all_there_is_of_a_text(of_bytes, text):
    [estimate] = of_bytes.log_likelihood([text])
    model = of_bytes.checkpoint.model
    exact = log_p(model, [*text.encode(), BYTES.end], BYTES.start)
    assert estimate.log_evidence == pytest.approx(exact, rel=1e-10)
    assert estimate.num_tokens == len(text.encode()) + 1
    [estimate] = of_bytes.log_likelihood([text], contexts=["é"])
    whole, given = (log_p(model, [*t.encode()], BYTES.start) for t in ("é" + text, "é"))
    assert estimate.log_evidence == pytest.approx(whole - given, rel=1e-9, abs=1e-9)
    assert estimate.num_tokens == len(text.encode())


def test_strings_of_one_length_total_what_they_should(of_subwords):
    """Those that the tokenizer cuts in the one way there is for them."""
    texts = ["ab", "aab", "ba", "abab", "b"]
    tokens = [[2], [0, 2], [1, 0], [2, 2], [1]]
    model = of_subwords.checkpoint.model
    for estimate, ids in zip(of_subwords.log_likelihood(texts), tokens, strict=True):
        assert estimate.log_evidence == pytest.approx(log_p(model, [*ids, 4], 3))
    # A token across the border belongs to the continuation.
    [estimate] = of_subwords.log_likelihood(["b"], contexts=["ba"])
    exact = log_p(model, [1, 2], 3) - log_p(model, [1], 3)
    assert estimate.log_evidence == pytest.approx(exact)
    with pytest.raises(ValueError, match=r"text/0 .* has no tokens for 'x'"):
        of_subwords.log_likelihood(["axb"])


def test_the_unknown_token_is_not_written(of_subwords):
    model = of_subwords.checkpoint.model
    bias = model.bias.detach().clone()
    model.bias.data[5] += 50.0
    try:
        written = of_subwords.generate(["a"] * 4, max_tokens=6)
    finally:
        model.bias.data.copy_(bias)
    assert not any("unk" in text for text in written)


def test_a_tokenizer_without_its_marks_is_refused(tmp_path):
    bpe().save(str(tmp_path / "bpe.json"))
    with pytest.raises(ValueError, match=r"bpe\.json has no token '<end>'"):
        SubwordEncoder.load(tmp_path / "bpe.json", start="<s>", end="<end>")
    with pytest.raises(ValueError, match="is not a readable tokenizer"):
        SubwordEncoder.load(tmp_path / "none.json", start="<s>", end="</s>")
