"""Models of words, bytes and tokens are distributions over strings.

All strings of a tiny alphabet are scored one by one, up to a length. Beside it stands
the same mass worked out without any string: sums over sequences of known, copied and
unknown words, whose lengths in characters are distributed as the spelling model says.
"""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from tokenizers.normalizers import Lowercase

import lm_latent_eval
from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.recurrent_lm import LSTMConfig, LSTMLanguageModel
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.opening import scorer_of
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.encoder import ByteEncoder, SubwordEncoder
from lm_latent_eval.text.orthography import BEGIN, Orthography, Spacing, Spelling
from lm_latent_eval.text.orthography import END as END_OF_TEXT
from lm_latent_eval.text.words import END, START, UNKNOWN, WordTokenizer
from tests import tiny_models
from tests.kglm_space import every_walk
from tests.tiny_models import randomised

LETTERS = b"ab"
KNOWN = {"a": 4, "ab": 5}
COPIED = {"b": 6}
"""Uttered as an unknown word, or copied from the alias of a node."""
VOCABULARY = {"vocab_size": 6, "num_words": 7}
LONGEST = 4
"""Characters of the strings that are listed."""


def words() -> WordTokenizer:
    tokenizer = WordTokenizer.train(["a a a ab ab"], copied=["b"])
    ids = {word: tokenizer(word).ids for word in (*KNOWN, *COPIED)}
    assert ids == {word: [i] for word, i in (KNOWN | COPIED).items()}, "premise"
    return tokenizer


def writing() -> Orthography:
    spelling = randomised(Spelling(LETTERS, 3, 4).double(), 3, 0.7).eval()
    spelling.exclude(words().vocabulary)
    texts = ("a ab b", "ab  a ", "b a")
    return Orthography(spelling, Spacing.train((t, words()(t)) for t in texts))


def kglm() -> KGLM:
    graph = KnowledgeGraph.build(
        [("Ada", "knows", "Bo")],
        {"Ada": [[COPIED["b"]], [KNOWN["a"], COPIED["b"]]], "Bo": [[KNOWN["ab"]]]},
        max_aliases=2,
        max_alias_words=2,
    )
    return tiny_models.kglm(graph, seed=4, spread=0.7, **VOCABULARY)


MODELS = {
    "lstm": (lambda: tiny_models.lstm(1, 0.8, **VOCABULARY), {"estimator": "exact"}),
    "kglm": (kglm, {"estimator": "beam", "num_samples": 3000, "batch_size": 8}),
}


def log_classes(model, ids: list[int]) -> float:
    """log p of a sequence of words where an unknown one may be any.

    The copied word is only that which is copied.
    """
    costs = [-torch.inf if i in COPIED.values() else 0.0 for i in ids]
    batch = TokenBatch.collate([ids], [costs], first=START, spelled=True)
    if isinstance(model, LSTMLanguageModel):
        return model.log_joint(model.encode(batch), NO_LATENT).item()
    walks = every_walk(model.knowledge, len(ids), 2, 1)
    return model.log_joint(model.encode(batch), walks).logsumexp(-1).item()


def lengths_of_unknown(spelling: Spelling) -> list[float]:
    """Probabilities that an unknown word has 0, 1, ... letters, from those of bytes."""
    inside = sum(spelling.log_mass([word]).exp().item() for word in KNOWN)
    by_length = [0.0]
    for n in range(1, LONGEST + 1):
        letters = ["".join(w) for w in product("ab", repeat=n)]
        mass = spelling.log_mass(letters).exp().sum().item()
        known = [w for w in KNOWN if len(w) == n]
        mass -= sum(spelling.log_mass([w]).exp().item() for w in known)
        by_length.append(mass / (1 - inside))
    return by_length


def mass_of_strings(model, orthography: Orthography) -> float:
    """Total probability of the strings, from sequences of words and lengths.

    Two words without white space between them are no two words in any string: that mass
    is lost, and no other.
    """
    unknown = lengths_of_unknown(orthography.spelling)
    length_of = {UNKNOWN: unknown}
    for word, i in (KNOWN | COPIED).items():
        length_of[i] = [float(n == len(word)) for n in range(LONGEST + 1)]

    def gap(left: str, right: str, least: int) -> list[float]:
        log_prob = orthography.spacing._log_prob
        mass = [math.exp(log_prob(left, right, " " * n)) for n in range(LONGEST + 1)]
        return [m if n >= least else 0.0 for n, m in enumerate(mass)]

    def convolve(a: list[float], b: list[float]) -> list[float]:
        return [sum(a[k] * b[n - k] for k in range(n + 1)) for n in range(LONGEST + 1)]

    total = math.exp(log_classes(model, [END])) * sum(gap(BEGIN, END_OF_TEXT, 0))
    for num_words in range(1, LONGEST + 1):
        for ids in product(length_of, repeat=num_words):
            lengths = gap(BEGIN, "a", 0)
            for n, i in enumerate(ids):
                if n:
                    lengths = convolve(lengths, gap("a", "a", 1))
                lengths = convolve(lengths, length_of[i])
            reached = sum(convolve(lengths, gap("a", END_OF_TEXT, 0)))
            if reached:
                p = math.exp(log_classes(model, [*ids, END]))
                total += p * reached
    return total


@pytest.mark.parametrize("name", MODELS)
def test_strings_have_exactly_the_mass_they_should(name, tmp_path):
    build, how = MODELS[name]
    model, orthography = build(), writing()
    checkpoint.save(model, words(), tmp_path, model.state_dict(), orthography)
    strings = [
        "".join(letters)
        for n in range(LONGEST + 1)
        for letters in product("ab ", repeat=n)
    ]
    estimates = load(tmp_path, device="cpu").log_likelihood(strings, **how)
    log_p = torch.tensor([e.log_evidence for e in estimates], dtype=torch.float64)
    total = log_p.logsumexp(0).exp().item()
    assert total == pytest.approx(mass_of_strings(model, orthography), rel=1e-10)
    assert 0.3 < total <= 1, "premise: much of it is in these strings"


# -- units that are no words: bytes, and the tokens of a tokenizer ---------------------


BYTES = ByteEncoder()


class UnitConfig(LSTMConfig):
    model_type = "tests_units"

    def __init__(self, **fields):
        super().__init__(**fields)


class ByteLSTM(LSTMLanguageModel):
    config_class = UnitConfig
    normalization = Normalization.ONE

    def load_encoder(self, directory):
        return BYTES


class SubwordLSTM(LSTMLanguageModel):
    config_class = UnitConfig
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
    tokenizer = Tokenizer(BPE(vocabulary, merges=[("a", "b")], unk_token="<unk>"))
    tokenizer.decoder = Fuse()
    return tokenizer


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


def test_strings_that_share_tokens_are_not_scored_as_strings(tmp_path):
    """Together they would have several times what their tokens have."""
    tokenizer = bpe()
    tokenizer.normalizer = Lowercase()
    tokenizer.save(str(tmp_path / "bpe.json"))
    model = write(tmp_path, SubwordLSTM, 6, 3)
    scorer = scorer_of(model.opened, {}, quiet=True)
    texts = [Query(n, f"text/{n}", text) for n, text in enumerate(("ab", "Ab", "aB"))]
    after = [Query(3, "after", "b", "A"), Query(4, "before", "B", "a")]
    found = [*scorer.score_texts(texts), *scorer.score_continuations(after)]
    found = sorted(found, key=lambda answer: answer.index)
    assert len({answer.estimate.log_evidence for answer in found[:3]}) == 1
    assert [bool(answer.respaced) for answer in found] == [False, *[True] * 4]


def test_tokens_that_write_a_space_first_write_the_text_after_it(tmp_path):
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=True)
    tokenizer.train_from_iterator(["a cab"], 258, special_tokens=["<s>", "</s>"])
    tokenizer.save(path := str(tmp_path / "bpe.json"))
    encoder = SubwordEncoder.load(path, start="<s>", end="</s>")
    one, other = encoder("a cab"), encoder(" a cab")
    assert one.ids == other.ids, "premise: they share a probability"
    assert encoder.decode(one.ids) == "a cab"
    assert (any(one.respaced), any(other.respaced)) == (False, True)


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
