"""``latent_tokens`` beside ``--model hf``, on lm-eval's own tasks."""

import json
import math

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import lm_latent_eval
from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.report import results
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary
from tests import tiny_causal, tiny_checkpoint
from tests.harness.test_processes import write_tasks
from tests.stock_tasks import PAGES, PAIRS, PASSAGES, evaluated
from tests.tiny_checkpoint import conditional, generation, rolling
from tests.wrappers.mdm import tiny as masked

SENTENCES = [
    "The miller's daughter counted twelve geese before the rain came down.",
    "Nobody in the valley had seen a bridge as old as this one.",
    "He wrote 17 letters, and she answered none of them; so it went.",
    "Geese, ducks and a grey heron: the pond behind the mill was theirs.",
    "Ada saw the fox, and the fox saw Ada; Bo saw a zebra.",
    *(text for pair in PAIRS for text in pair),
    *PASSAGES,
    *(page for page, *_ in PAGES),
]
SPECIAL = ["<s>", "</s>"]


def byte_level():
    """As GPT-2: bytes, merges, and no mark of its own around a text."""
    built = ByteLevelBPETokenizer()
    built.train_from_iterator(
        SENTENCES, vocab_size=330, special_tokens=SPECIAL[1:], show_progress=False
    )
    return tiny_causal.fast(Tokenizer.from_str(built.to_str()), eos_token="</s>")


def byte_fallback():
    """As Llama 2: spaces as letters, bytes for what has no token, a mark before."""
    built = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    built.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    undone = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    built.decoder = decoders.Sequence([*undone, decoders.Strip(" ", 1, 0)])
    built.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    marks = ["<unk>", *SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[*marks, *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    built.train_from_iterator(SENTENCES, trainer)
    # Tokens of bytes are no special ones: the trainer only puts them first.
    state = json.loads(built.to_str())
    del state["added_tokens"][len(marks) :]
    built = Tokenizer.from_str(json.dumps(state))
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
    )
    unk, bos, eos = marks
    return tiny_causal.fast(built, bos_token=bos, eos_token=eos, unk_token=unk)


KINDS = {"bytes": byte_level, "fallback": byte_fallback}


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory):
    """A network of 48 positions with a tokenizer of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    return tiny_causal.save(folder, KINDS[request.param](), positions=48)


def opened(folder, **how):
    return LatentTokens(pretrained=str(folder), device="cpu", **how)


@pytest.mark.parametrize("adds", [None, False])
def test_a_text_that_starts_twice_is_told(tmp_path, caplog, adds):
    """Gemma's tokenizer puts a start token before a text, lm-eval another one."""
    loaded = byte_fallback()
    network = tiny_causal.model(len(loaded), positions=48)
    tiny_causal.save(tmp_path, loaded, network)
    lm = opened(tmp_path, add_bos_token=adds, estimator="canonical")
    assert ("add_bos_token=False" in caplog.text) is (adds is None)
    [found] = lm.loglikelihood_rolling(rolling("Ada saw"))
    tokens = loaded.encode("Ada saw", add_special_tokens=False)
    given = [1, 1] if adds is None else [1]
    with torch.no_grad():
        scores = network(torch.tensor([[*given, *tokens]])).logits[0].log_softmax(-1)
    after = [*given, *tokens][1:]
    wanted = scores[range(len(after)), after].sum().item()
    assert found == pytest.approx(wanted, abs=1e-9)


LONG = " ".join(SENTENCES[:5])
PAIRED = [
    ("The miller's daughter", " counted twelve geese."),
    ("The mil", "ler's daughter"),
    ("Nobody in ", "the valley"),
    ("", "Geese, ducks"),
    (LONG, " and so on"),
    (LONG + " Ada", " saw the fox"),
]


def test_canonical_is_hf(directory):
    """Beginnings, ends, windows, and contexts longer than the window."""
    hf = HFLM(pretrained=str(directory), device="cpu")
    ours = opened(directory, estimator="canonical")
    texts = [*SENTENCES[:4], LONG, "a"]
    assert ours.loglikelihood_rolling(rolling(*texts)) == pytest.approx(
        tiny_checkpoint.log_likelihoods(hf, *texts), rel=1e-10
    )
    # Without a start token ``hf`` has nothing to follow there.
    pairs = [*PAIRED, *[(" ", "Geese, ducks")] * bool(hf.tok_encode(""))]
    found = ours.loglikelihood(conditional(*pairs))
    for (log_p, greedy), (wanted, whether) in zip(
        found, hf.loglikelihood(conditional(*pairs)), strict=True
    ):
        assert log_p == pytest.approx(wanted, rel=1e-10)
        assert greedy is whether
    assert ours.get_model_info()["latent_eval"]["computed_in"] == "torch.float64"
    thinking = opened(directory, estimator="canonical", think_end_token=".")
    assert thinking.fingerprint != ours.fingerprint, "it moves what is written"
    asked = generation("The miller", until=["."], max_gen_toks=8)
    assert ours.generate_until(asked) == hf.generate_until(asked)
    with pytest.raises(ValueError, match="ends in half a character"):
        ours.generate_until(generation("The \ud83d", until=["."], max_gen_toks=8))


def test_a_context_without_tokens_is_what_texts_follow(directory):
    """``hf`` ends there in torch's RuntimeError, beside whatever else is asked."""
    hf = HFLM(pretrained=str(directory), device="cpu")
    ours = opened(directory)
    how = {"until": ["zebra"], "max_gen_toks": 5}
    begin = hf.tokenizer.decode([hf.prefix_token_id])
    wanted = hf.generate_until(generation(begin, "The miller", **how))
    empty = [context for context in ("", " ") if not hf.tok_encode(context)]
    for context in empty:
        asked = generation(context, "The miller", **how)
        assert ours.generate_until(asked) == wanted
        assert asked[0].args[0] == context
    assert empty or hf.tok_encode("") == [hf.prefix_token_id], "premise"


@pytest.fixture(scope="module")
def model(directory):
    return lm_latent_eval.load(directory, model="tokens", device="cpu")


def test_characters_of_several_bytes_are_restored(model):
    text = "the é"
    [found] = model.log_likelihood([text], estimator="exact", end="prefix")
    lattice = model.opened.scorer({}, quiet=True)._encoding.cut(text)[0].summed
    assert lattice.target == text.encode()
    assert lattice.longest > lattice.fewest[lattice.start], "there are several"
    assert found.log_evidence < 0


def test_a_window_is_filled_by_what_fits(directory):
    """Where the network reads more than a window, more segmentations do."""
    text = "Nobody in the valley had seen a bridge as old as this one"

    def gain(**limit):
        lm = opened(directory, estimator="beam", num_samples=8, **limit)
        [found] = lm.loglikelihood_rolling(rolling(text))
        return found - found.answer.canonical, found.answer.sentences

    fits, windows = gain(max_length=8)
    assert windows > 1
    assert fits > 0
    assert gain()[0] > 0


def test_bad_texts(model):
    with pytest.raises(ValueError, match="writes as --model hf does"):
        model.generate([""])
    with pytest.raises(ValueError, match="the text is empty: only end=eos"):
        model.log_likelihood([""])
    assert model.log_likelihood([""], contexts=["Ada"])[0].log_evidence == 0
    with pytest.raises(ValueError, match=r"estimator=exact would read .* max_segment"):
        model.log_likelihood(
            ["the fox saw Ada"], estimator="exact", max_segmentations=5
        )


def test_what_a_tokenizer_does_not_restore_is_told():
    lower, composed, words = byte_level(), byte_level(), tiny_causal.words()
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    composed.backend_tokenizer.normalizer = normalizers.NFC()
    words.unk_token = tiny_causal.ODD
    for tokenizer, text, told, other in (
        (lower, "Ada", "does not restore 'Ada' but writes 'ada'", "ada"),
        (composed, "e\u0301", r"restore 'e\\u0301' but writes '\\xe9'", "\xe9"),
        (words, "a zebra", "no tokens for a part of 'a zebra'", "a ab"),
    ):
        model = SegmentedLM(tiny_causal.network(tokenizer))
        ask = model.scorer({"num_samples": 4}, quiet=True)
        with pytest.raises(ValueError, match=told):
            list(ask.score_texts([Query(0, "task/0", text)]))
        assert len(list(ask.score_texts([Query(0, "task/0", other)]))) == 1


def test_networks_that_are_none():
    network = masked.network("bert")
    for model in (SegmentedLM, ThinkingLM):
        with pytest.raises(ValueError, match="BertForMaskedLM sees the tokens that fo"):
            model(network)
    with pytest.raises(ValueError, match="object is a slow tokenizer"):
        ByteVocabulary.of(object(), 10)


# -- multiple choice ------------------------------------------------------------------

CHOICES = [
    ("aa", ["b", "c", "a"]),
    ("ba", ["bb", "ca", "cb", "cc"]),
    ("ca", ["ab", "b", "cab"]),
    ("a", ["ba", "ab"]),
]


@pytest.mark.parametrize("estimator", ["dpf", "exact"])
def test_multiple_choice_is_what_listing_says(tmp_path, caplog, estimator):
    """The network treats ``b`` and ``c`` alike, so options that swap them tie."""
    letters = ["a", "b", "c", "ab", "ac"]
    tokenizer = tiny_causal.byte_level(letters, [("a", "b"), ("a", "c")])
    network = tiny_causal.model(len(tokenizer), seed=3)
    with torch.no_grad():
        rows = network.transformer.wte.weight
        rows[[2, 4]] = rows[[1, 3]]
    tiny_causal.save(tmp_path / "network", tokenizer, network)
    rows = [
        {"context": context, "choices": choices, "answer": answer}
        for context, choices in CHOICES
        for answer in range(len(choices))
    ]
    write_tasks(tmp_path, "", rows)
    lm = opened(tmp_path / "network", estimator=estimator)
    found = evaluated(
        lm, ["tiny_questions"], str(tmp_path / "tasks"), out=tmp_path / "out"
    )
    listed = tiny_causal.Listed(tiny_causal.Network.of(network, tokenizer), 5)
    [path] = (tmp_path / "out").rglob("record_*.parquet")
    [record] = results.read(path)
    answers, right, num_tied = iter(record.answers), 0.0, 0
    for row in rows:
        context, choices = row["context"], row["choices"]
        truth = [
            math.log(listed.border(context + choice) / listed.prefix(context))
            for choice in choices
        ]
        best = [math.isclose(one, max(truth), rel_tol=1e-9) for one in truth]
        several = sum(best) > 1
        right += best[row["answer"]] / sum(best)
        num_tied += several
        options = [next(answers) for _ in choices]
        log_p = [option.estimate.log_evidence for option in options]
        assert log_p == pytest.approx(truth, abs=1e-10)
        assert {option.estimate.bound for option in options} == {Bound.EXACT}
        assert [option.tied for option in options] == [several and one for one in best]
    assert 0 < num_tied < len(rows), "premise"
    assert found["config"]["latent_eval"]["questions_tied"] == num_tied
    assert f"{num_tied} of {len(rows)} questions tie" in caplog.text
    assert found["results"]["tiny_questions"]["acc,none"] == pytest.approx(
        right / len(rows)
    )
