"""What ``contrastive_entropy`` takes, gives and refuses."""

import json
import math

import numpy as np
import pytest
import torch

from lm_latent_eval.contrastive.copies import score_copies
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.scoring.string_scorers import string_scorer
from lm_latent_eval.text.noise import NoiseChannel
from tests.metrics.conftest import of

SCORES = {
    "log_scores": [-10.0, -24.0, -7.5],
    "num_words": [4, 9, 2],
    "distorted": {
        0.1: [[-12.0, -25.0, -9.0], [-12.5, -25.5, -9.5]],
        0.5: [[-13.0, -32.0, -14.5], [-14.0, -33.0, -15.5]],
    },
}


@of("contrastive_entropy")
def test_contrastive_numbers_by_hand(metric):
    found = metric.compute(**SCORES)

    # differences total 4.5 and 6 at 10 %, 18 and 21 at 50 %, over 15 words
    assert found["nats_per_word"] == pytest.approx({0.1: 0.35, 0.5: 1.3})
    assert found["nats_per_sentence"] == pytest.approx({0.1: 1.75, 0.5: 6.5})
    assert found["bits_per_word"][0.5] == pytest.approx(1.3 / math.log(2))
    assert found["ratio"] == pytest.approx({0.1: 1, 0.5: 39 / 10.5})
    assert found["nats_per_word_replicate_stderr"] == pytest.approx(
        {0.1: 0.05, 0.5: 0.1}
    )
    # means of the replicates: 2.25, 1.25, 1.75 around 1.75, of three sentences
    assert found["nats_per_sentence_stderr"][0.1] == pytest.approx(math.sqrt(0.25 / 3))
    assert (found["num_sentences"], found["num_words"]) == (3, 15)
    assert (found["replicates"], found["baseline"]) == (2, 0.1)


@of("contrastive_entropy")
def test_scores_in_any_container(metric):
    expected = metric.compute(**SCORES)
    for array in (np.array, torch.tensor):
        found = metric.compute(
            log_scores=array(SCORES["log_scores"]),
            num_words=array(SCORES["num_words"]),
            distorted={
                level: array(scores) for level, scores in SCORES["distorted"].items()
            },
        )
        assert found == expected


@of("contrastive_entropy")
def test_without_words_rates_are_per_sentence(metric):
    expected = metric.compute(**SCORES)
    inputs = {name: v for name, v in SCORES.items() if name != "num_words"}

    found = metric.compute(**inputs, baseline=0.5)

    assert found["num_words"] is None
    assert not [name for name in found if "per_word" in name]
    assert found["nats_per_sentence"] == expected["nats_per_sentence"]
    assert found["ratio"] == pytest.approx({0.1: 10.5 / 39, 0.5: 1})


@of("contrastive_entropy")
@pytest.mark.parametrize(
    ("power", "steeper", "expected"),
    [
        (2.0, 1.0, "superior"),  # higher, ratio the same
        (4.0, 0.5, "scaling"),
        (0.5, 1.5, "indeterminate"),
        (0.5, 0.5, "inferior"),
    ],
)
def test_verdicts(metric, power, steeper, expected):
    """Scores to a power, with what 50 % adds to 10 % made more or less."""
    first = metric.compute(**SCORES)
    clean = torch.tensor(SCORES["log_scores"], dtype=torch.float64)
    copies = {k: torch.tensor(v).double() for k, v in SCORES["distorted"].items()}
    copies[0.5] = clean + steeper * (copies[0.5] - clean)

    second = metric.compute(
        log_scores=power * clean,
        num_words=SCORES["num_words"],
        distorted={level: power * scores for level, scores in copies.items()},
        against=first,
    )

    assert second["verdict"] == {0.5: expected}


@of("contrastive_entropy")
def test_texts_are_scored_as_by_hand(metric):
    texts = ["She studied in the town.", "The book was published in 1969."]
    settings = {"num_samples": 20}
    noise = {"levels": (0.1, 0.4), "replicates": 3, "seed": 5}
    vocabulary = ["river", "plum", "she"]

    found = metric.compute(
        texts=texts,
        scorer=str(CHECKPOINT),
        settings=settings,
        vocabulary=vocabulary,
        **noise,
    )

    scored = score_copies(
        texts, string_scorer(CHECKPOINT, **settings), vocabulary=vocabulary, **noise
    )
    expected = metric.compute(
        log_scores=scored.log_scores,
        num_words=scored.num_words,
        distorted=scored.distorted,
        stderrs=scored.stderrs,
    )
    assert found == {**expected, "seed": 5, "vocabulary_size": 3}
    assert found["ratio"][0.4] > 1


@of("contrastive_entropy")
def test_a_function_scores_texts(metric):
    """Four nats a word of nonsense: the entropy counts what the channel let in."""
    texts = ["a b c d e f g h i j", "a b", "c d e"]

    def scorer(batch):
        return [-4.0 * text.split().count("X") for text in batch]

    found = metric.compute(texts=texts, scorer=scorer, vocabulary=["X"], seed=3)

    for level in (0.1, 0.3, 0.5):
        channel = NoiseChannel.preset(level, ["X"])
        nonsense = [
            channel.distort(text.split(), seed=3, name=n, replicate=r).count("X")
            for r in range(10)
            for n, text in enumerate(texts)
        ]
        expected = 4 * sum(nonsense) / 10 / 15
        assert found["nats_per_word"][level] == pytest.approx(expected)


@of("contrastive_entropy")
def test_contrastive_refusals(metric):
    ok = {"log_scores": [-1.0, -2.0], "distorted": {0.1: [-2.0, -4.0]}}
    metric.compute(**ok)
    for changed, message in [
        ({"distorted": {0.1: [-2.0], 0.3: [-2.0, -3.0]}}, "every level needs as many"),
        ({"distorted": {0.1: [-2.0]}}, "Mismatch"),
        ({"distorted": {0.1: [-2.0, -math.inf]}}, r"\[0, 1\] is -inf"),
        ({"distorted": {}}, "every level needs"),
        ({"distorted": [[[-2.0]], [[-2.0]]]}, r"needs 3 lists, .* \[0.1, 0.3, 0.5\]"),
        ({"distorted": [[[-2.0]], [[-2.0, -3.0]]], "levels": [1]}, "of one length"),
        ({"num_words": [3, None]}, r"num_words\[1\] is missing"),
        ({"num_words": [3, 0]}, r"num_words\[1\] is 0; expected .* at least 1"),
        ({"num_words": [3, 1.5]}, r"num_words\[1\] is 1.5; expected a whole number"),
        ({"log_scores": [None, -2.0]}, r"log_scores\[0\] is missing"),
        ({"distorted": {0.1: [-2.0, None]}}, r"distorted\[0.1\]\[1\] is missing"),
        (
            {"distorted": [[[-2.0]], [[None]]], "levels": [1]},
            r"distorted\[1\]\[0\]\[0\] is missing",
        ),
        ({"baseline": 0.2}, "0.2 is no level"),
        ({"distorted": {0.0: [-1.0, -2.0], 0.1: [-2.0, -4.0]}}, r"level 0.0: expected"),
        ({"distorted": {-0.1: [-2.0, -4.0]}}, r"level -0.1: expected a number above 0"),
        ({"distorted": [[[-2.0]] * 2] * 2, "levels": [0.3, 0.3]}, "0.3: .* each once"),
        ({"against": {"ratio": {0.1: 1.0}}}, "another model on the same text"),
        ({"against": {"ratio": {"low": 1.0}}}, "another model on the same text"),
        ({"texts": ["a"]}, "missing: scorer"),
        ({"texts": ["a"], "scorer": len, "levels": [0.0]}, "leave out"),
        ({"texts": ["a"], "scorer": len}, "leave out distorted, log_scores"),
    ]:
        with pytest.raises(ValueError, match=message):
            metric.compute(**{**ok, **changed})


@of("contrastive_entropy")
def test_without_a_ratio_entropies_are_kept(metric):
    """A model that prefers the mildest copies, judged and judging."""
    contrary = {**SCORES, "distorted": {**SCORES["distorted"]}}
    contrary["distorted"][0.1] = [[-9.0, -23.0, -7.0], [-9.5, -23.5, -6.0]]

    found = metric.compute(**contrary, against=metric.compute(**SCORES))

    expected = metric.compute(**SCORES)
    for name in expected:
        if "_per_" in name:
            assert found[name][0.5] == expected[name][0.5]
    assert found["nats_per_word"][0.1] == pytest.approx(-(2.5 + 2.5) / 2 / 15)
    for name in ("ratio", "ratio_stderr", "ratio_replicate_stderr"):
        assert found[name] == {0.1: None, 0.5: None}
    assert found["verdict"] == {0.5: None}
    assert metric.compute(**SCORES, against=found)["verdict"] == {0.5: None}


@of("contrastive_entropy")
def test_a_result_that_was_written_as_json(metric):
    first = metric.compute(**SCORES)
    read = json.loads(json.dumps(first))
    assert set(read["ratio"]) == {"0.1", "0.5"}, "premise"
    again = metric.compute(**SCORES, against=read)
    assert again["verdict"] == metric.compute(**SCORES, against=first)["verdict"]


@of("contrastive_entropy")
@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_words_is_refused(metric, text):
    """It would count as a sentence that no noise can touch."""
    with pytest.raises(ValueError, match=r"texts\[1\] is .* no word to distort"):
        metric.compute(texts=["a bb ccc", text], scorer=never)


@of("contrastive_entropy")
def test_nothing_is_scored_for_a_baseline_that_is_no_level(metric):
    with pytest.raises(
        ValueError, match=r"0.2 is no level; there is \[0.1, 0.3, 0.5\]"
    ):
        metric.compute(texts=["a b"], scorer=never, baseline=0.2)


def never(texts):
    raise AssertionError("nothing should have been scored")
