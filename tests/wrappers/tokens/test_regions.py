"""Surprisal by word of a causal LM against sums over what can follow."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.inside.regions import Regions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.wrappers import asking

PIECES = ["a", "b", "Ġ", "Ġa", "ab"]
TEXT = "ab a b"


@pytest.fixture(scope="module")
def model():
    tokenizer = tiny_causal.byte_level(PIECES, [("Ġ", "a"), ("a", "b")])
    return SegmentedLM(tiny_causal.network(tokenizer))


def next_log_p(model, tokens):
    """Log p of every token after the end token and some tokens."""
    ids = [[model.network.prefix_token, *tokens]]
    with torch.no_grad():
        return model.network.model(torch.tensor(ids)).logits[0, -1].log_softmax(-1)


def scored(model, regions, **options):
    scorer = model.scorer({"estimator": "canonical", **options}, quiet=True)
    [(_, found)] = scorer.score_regions([regions])
    return found


def words(text):
    return Regions.of_words(Query(0, "text/0", text))


def test_a_word_ends_where_a_space_or_the_end_may_follow(model):
    tokens, end = model.network.tokenizer.encode(TEXT), model.network.tokenizer
    assert end.convert_ids_to_tokens(tokens) == ["ab", "Ġa", "Ġ", "b"], "premise"
    after = [PIECES.index("Ġ"), PIECES.index("Ġa"), end.eos_token_id]

    def border(n):
        return next_log_p(model, tokens[:n])[after].logsumexp(0).item()

    def log_p(n):
        return next_log_p(model, tokens[:n])[tokens[n]].item()

    expected = [
        log_p(0) + border(1),
        log_p(1) + border(2) - border(1),
        log_p(2) + log_p(3) + border(4) - border(2),
    ]
    found = [score.estimate.log_evidence for score in scored(model, words(TEXT))]
    assert found == pytest.approx(expected, abs=1e-9)
    [whole] = asking.answers(model.scorer({"estimator": "canonical"}, quiet=True), TEXT)
    plain = whole.estimate.log_evidence
    assert math.fsum(found) == pytest.approx(plain + border(4), abs=1e-9)


def test_an_end_takes_back_the_last_border(model):
    scores = scored(model, words(TEXT), end="eos")
    assert [score.number for score in scores] == [0, 1, 2, None]
    scorer = model.scorer({"estimator": "canonical", "end": "eos"}, quiet=True)
    [whole] = asking.answers(scorer, TEXT)
    total = math.fsum(score.estimate.log_evidence for score in scores)
    assert total == pytest.approx(whole.estimate.log_evidence, abs=1e-9)


def test_words_after_a_border_total_at_most_one(model):
    """Over words of up to four tokens; longer ones have the rest."""
    first, border = model.network.tokenizer.encode("ab"), [2, 3, 5]
    letters, total = [0, 1, 4], 0.0
    start = next_log_p(model, first)[border].logsumexp(0).item()
    for begin in (2, 3):
        for length in range(4):
            for rest in itertools.product(letters, repeat=length):
                tokens, log_p = [*first], 0.0
                for token in (begin, *rest):
                    log_p += next_log_p(model, tokens)[token].item()
                    tokens.append(token)
                if (begin, *rest) == (2,):
                    continue  # no word
                ended = next_log_p(model, tokens)[border].logsumexp(0).item()
                total += math.exp(log_p + ended - start)
    assert 0.3 < total < 1


def test_regions_inside_a_word_add_up_to_it(model):
    text = Regions(Query(0, "text/0", TEXT), (1, 2, 4, 6))
    parts = [score.estimate.log_evidence for score in scored(model, text)]
    whole = [score.estimate.log_evidence for score in scored(model, words(TEXT))]
    assert parts[0] == pytest.approx(next_log_p(model, [])[0].item(), abs=1e-9)
    added = [parts[0] + parts[1], *parts[2:]]
    assert added == pytest.approx(whole, abs=1e-9)


CROSSING = [*PIECES, "bĠa"]
"""The last one writes a border that the tokenizer never writes inside a token."""
KINDS = {
    "byte-level": (
        lambda: tiny_causal.byte_level(CROSSING, [("Ġ", "a"), ("a", "b")]),
        4,
    ),
    "spaced": (tiny_causal.spaced, 5),
    "words": (tiny_causal.words, 4),
}
"""Tokenizers, and the most tokens of a sequence that writes the text."""


def p_of_whole_words(listed, borders, text):
    """p of all strings that begin so and go on with white space, or end."""
    spaced = [
        z for z in listed.covers(text) if listed.strings[z][len(text) :][:1] == " "
    ]
    followed = sum(listed.border(text, token) for token in borders)
    return math.fsum(map(listed.p, spaced)) + followed


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_all_segmentations_are_ratios_of_two_sums(kind):
    build, longest = KINDS[kind]
    tokenizer = build()
    network = tiny_causal.network(tokenizer)
    listed = tiny_causal.Listed(network, longest)
    decode = tokenizer.backend_tokenizer.decoder.decode
    names = [n for n in tokenizer.get_vocab() if n not in tokenizer.all_special_tokens]
    spaces = [name for name in names if decode(["a", name])[1:2] == " "]
    borders = [*tokenizer.convert_tokens_to_ids(spaces), tokenizer.eos_token_id]
    model, text, end = SegmentedLM(network), "ab a", tokenizer.eos_token_id
    scorer = model.scorer({"estimator": "exact", "end": "eos"}, quiet=True)
    inside = Regions(Query(1, "text/1", text), (1, 2, 4))
    found = dict(scorer.score_regions([words(text), inside]))
    first, second = (p_of_whole_words(listed, borders, s) for s in ("ab", text))
    p_end = listed.border(text, end)
    sums = {0: [1, first, second, p_end], 1: [1, listed.prefix("a"), first, second]}
    assert len(listed.segmentations(text)) > 1, "premise"
    for index, of in sums.items():
        expected = [math.log(b / a) for a, b in itertools.pairwise(of)]
        estimates = [score.estimate for score in found[index][:3]]
        values = [estimate.log_evidence for estimate in estimates]
        assert values == pytest.approx(expected, abs=1e-9)
        assert {estimate.bound for estimate in estimates} == {Bound.EXACT}
    [whole] = asking.answers(scorer, text)
    total = math.fsum(score.estimate.log_evidence for score in found[0])
    assert total == pytest.approx(whole.estimate.log_evidence, abs=1e-9)


def test_passes_refute_no_word_that_is_told():
    """Few places: segmentations are dropped, and no other place of a text knows."""
    build, _ = KINDS["byte-level"]
    model = SegmentedLM(tiny_causal.network(build(), spread=8, seed=1))
    text, copies = "ab ab a ab", 40
    exact = scored(model, words(text), estimator="exact")
    texts = [Regions.of_words(Query(n, f"text/{n}", text)) for n in range(copies)]
    rows = dict(model.scorer({"num_samples": 52}, quiet=True).score_regions(texts))
    told = refuted = 0
    for word, truth in enumerate(exact):
        estimates = [rows[n][word].estimate for n in range(copies)]
        known = [e for e in estimates if e.stderr is not None]
        told += len(known)
        far = [abs(e.log_evidence - truth.estimate.log_evidence) for e in known]
        errors = [1.96 * e.stderr + 1e-9 for e in known]
        refuted += sum(a > b for a, b in zip(far, errors, strict=True))
    assert {e.bound for e in estimates} == {Bound.NONE}, "premise: something was cut"
    assert told > len(exact) * copies / 2
    assert refuted <= 0.05 * told + 3 * math.sqrt(0.05 * 0.95 * told)


GARDEN = ["a", "b", "ab", "Ġab", "Ġa", "Ġ", "c", "Ġc", "d", "Ġd"]


def garden_path():
    """A network that only after a rare segmentation of its first word expects c."""
    merges = [("a", "b"), ("Ġ", "ab"), ("Ġ", "a"), ("Ġ", "c"), ("Ġ", "d")]
    tokenizer = tiny_causal.byte_level(GARDEN, merges)
    read = torch.full((32, 11), tokenizer.eos_token_id)
    p = torch.zeros(32, 10)
    for n, (rare, *split, c) in enumerate(itertools.product((0, 1), repeat=5)):
        words = ["a b" if rare else "ab", *("Ġa b" if x else "Ġab" for x in split)]
        tokens = " ".join([*words, "Ġc" if c else "Ġd"]).split()
        p_c = 0.9 if rare else 1e-4
        of_words = math.prod(0.05 if x else 0.95 for x in split)
        p[n, : len(tokens) + 1] = (0.02 if rare else 0.98) * of_words
        p[n] *= p_c if c else 1 - p_c
        ids = tokenizer.convert_tokens_to_ids(tokens)
        read[n, 1 : len(ids) + 1] = torch.tensor(ids)
    network = tiny_causal.model(len(tokenizer)).requires_grad_(True)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(400):
        log_p = network(read[:, :-1]).logits.log_softmax(-1)
        own = log_p.gather(2, read[:, 1:, None])[..., 0]
        optimizer.zero_grad()
        (-(own * p).sum()).backward()
        optimizer.step()
    return SegmentedLM(Network.of(network.requires_grad_(False), tokenizer))


def test_no_error_is_told_where_a_word_refutes_what_was_kept():
    model, text, copies = garden_path(), "ab ab ab ab c", 40
    exact = scored(model, words(text), estimator="exact")
    last = scored(model, words(text))[-1].estimate.log_evidence
    assert exact[-1].estimate.log_evidence - last > 3, "premise: a garden path"
    texts = [Regions.of_words(Query(n, f"text/{n}", text)) for n in range(copies)]
    rows = dict(model.scorer({"num_samples": 13}, quiet=True).score_regions(texts))
    for word, truth in enumerate(exact):
        estimates = [rows[n][word].estimate for n in range(copies)]
        known = [e for e in estimates if e.stderr is not None]
        far = [abs(e.log_evidence - truth.estimate.log_evidence) for e in known]
        errors = [1.96 * e.stderr + 1e-9 for e in known]
        refuted = sum(a > b for a, b in zip(far, errors, strict=True))
        assert refuted <= 0.05 * len(known) + 3 * math.sqrt(0.05 * 0.95 * len(known))
        assert len(known) == copies or word == len(exact) - 1
    assert len(known) < copies / 4, "most have dropped the reading"


def test_a_beam_shows_the_best_of_all_segmentations(model):
    scorer = model.scorer({"num_samples": 100}, quiet=True)
    network, text = model.network, "ab a b"
    listed = tiny_causal.Listed(network, 6)
    p = {z: listed.p(z) for z in listed.segmentations(text)}
    [found] = scorer.best_latents([Query(0, "text/0", text)], 3)
    best = sorted(p, key=p.__getitem__, reverse=True)[:3]
    assert [latent.log_joint for latent in found.latents] == pytest.approx(
        [math.log(p[z]) for z in best], abs=1e-9
    )
    shares = [latent.share for latent in found.latents]
    assert shares == pytest.approx([p[z] / sum(p.values()) for z in best])
    assert all(latent.is_exact for latent in found.latents)
    written = [model.vocabulary.write(z, begins=True) for z in best]
    shown = [b"|".join(pieces).decode() for pieces in written]
    assert [latent.description.text for latent in found.latents] == shown
    [narrow] = model.scorer({"num_samples": 1}, quiet=True).best_latents(
        [Query(0, "text/0", text)], 3
    )
    assert not any(latent.is_exact for latent in narrow.latents)
