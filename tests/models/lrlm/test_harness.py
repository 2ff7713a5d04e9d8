"""Checkpoints of LRLM, NKLM, EntityNLM behind lm-eval, against lists of latents."""

from __future__ import annotations

import math

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lm_latent_eval import manifest
from lm_latent_eval.harness.backends import LatentEntityNLM, LatentLRLM, LatentNKLM
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.network import pieces
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.modeling import NKLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import tiny_checkpoint
from tests.models.entitynlm.space import every_chain
from tests.models.lrlm.tiny import every_reading
from tests.models.nklm.tiny import every_copy
from tests.tiny_checkpoint import UNKNOWN_TYPES, ids, rolling
from tests.tiny_models import randomised

ALIASES = ("Ada", "the fox", "Bo", "Bo Ada")
BACKENDS = {"lrlm": LatentLRLM, "nklm": LatentNKLM, "entitynlm": LatentEntityNLM}
EVERY = {"lrlm": {}, "nklm": {"num_samples": 500}, "entitynlm": {"num_samples": 5000}}
"""As many latents as the longest text has, where they are not summed."""
MAX_LENGTH = 2
CASES = (
    ("the fox saw Ada", ["the", "fox", "saw", "Ada"]),
    ("zebra Bo Ada.", ["?", "Bo", "Ada", "."]),
    ("", []),
)


def topics() -> Topics:
    return Topics.build(
        {
            "Ada": [Fact(0, 0, (0, 1)), Fact(1, 0, (2, 3))],
            "Bo": [Fact(0, 0, (2,)), Fact(1, 0, (0,))],
        },
        [ids(*alias.split()) for alias in ALIASES],
        pieces=[pieces(alias, 9) for alias in ALIASES],
    )


def model(name: str):
    words = {
        "vocab_size": tiny_checkpoint.tokenizer().vocab_size,
        "num_words": tiny_checkpoint.tokenizer().num_words,
        "num_unknown_types": UNKNOWN_TYPES,
        **{"embedding_dim": 4, "hidden_size": 5},
    }
    facts = {
        "num_relations": 2,
        "num_pieces": 9,
        **topics().sizes(),
        **{"predictor_dim": 4, "fact_dim": 3, "alias_dim": 3, "num_layers": 1},
    }
    if name == "entitynlm":
        built = EntityNLM(EntityNLMConfig(**words, max_mention_length=MAX_LENGTH))
    elif name == "lrlm":
        built = LRLM(LRLMConfig(**words, **facts), topics())
    else:
        built = NKLM(NKLMConfig(**words, **facts, num_positions=2), topics())
    return randomised(built.double(), 4, 0.8).eval()


def every_latent(built, words):
    if isinstance(built, EntityNLM):
        return every_chain(len(words), MAX_LENGTH)
    if isinstance(built, LRLM):
        return every_reading(built, len(words))
    return every_copy(built, words)


@pytest.fixture(scope="module", params=BACKENDS)
def opened(request, tmp_path_factory):
    """A model, its directory without and with spelling, and its backend."""
    built, folder = model(request.param), tmp_path_factory.mktemp(request.param)
    plain = tiny_checkpoint.write(folder / "plain", built)
    writing = tiny_checkpoint.orthography()
    spelled = tiny_checkpoint.write(folder / "spelled", built, writing)
    exact = EVERY[request.param]
    if exact:
        exact = {"estimator": "beam", **exact}

    def backend(directory=plain, **options):
        return BACKENDS[request.param](
            pretrained=str(directory), **{**exact, **options}
        )

    return built, spelled, backend


def log_p(built, words, costs) -> float:
    """log p of a text that begins with these words, by listing."""
    batch = TokenBatch.collate([words], [costs], first=START)
    latents = every_latent(built, words)
    return built.log_joint(built.encode(batch), latents).logsumexp(-1).item()


def test_whole_texts(opened):
    built, _, backend = opened
    found = backend().loglikelihood_rolling(rolling(*(text for text, _ in CASES)))
    for ours, (_, words) in zip(found, CASES, strict=True):
        text = [*ids(*words), END]
        beyond = [w == UNKNOWN or w >= built.config.vocab_size for w in text]
        costs = [-math.log(UNKNOWN_TYPES) * is_beyond for is_beyond in beyond]
        assert float(ours) == pytest.approx(log_p(built, text, costs), abs=1e-9)


def test_unknown_words_are_spelled_or_copied(opened):
    """A name's word that cannot be uttered has both ways, and they add up."""
    built, spelled, backend = opened
    text, words = "zebra Bo", ids("?", "Bo")
    [found] = backend(spelled).loglikelihood_rolling(rolling(text))
    writing = tiny_checkpoint.orthography()
    costs = [*writing.spelling.log_prob(["zebra", "Bo"]), 0.0]
    spacing = sum(writing.spacing(text, tiny_checkpoint.tokenizer()(text)))
    exact = log_p(built, [*words, END], costs) + spacing
    assert float(found) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("name", ["lrlm", "nklm"])
def test_topics_of_another_model_are_refused(tmp_path, name):
    path = tiny_checkpoint.write(tmp_path / "model", model(name))
    few = Topics.build({"Ada": [Fact(0, 0, (0,))]}, [ids("Ada")], pieces=[[1]])
    few.save(path)
    (path / "manifest.json").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"manifest|belongs to another checkpoint"):
        BACKENDS[name](pretrained=str(path))
    file = path / "topics.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="missing or damaged"):
        model(name).load_extras(path)


@pytest.mark.parametrize("column", ["fact_relation", "alias_pieces"])
def test_numbers_below_zero_are_refused(tmp_path, column):
    folder = tiny_checkpoint.write(tmp_path / "lrlm", model("lrlm"))
    path = folder / "topics.safetensors"
    tensors = load_file(path)
    assert len(tensors[column]), "premise"
    tensors[column][-1] = -1
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata)
    manifest.write(folder)
    with pytest.raises(ValueError, match=r"topics\.safetensors.*(not one of|dang)"):
        load_checkpoint(folder)
