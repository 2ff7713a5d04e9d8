"""Contrastive entropy as a task of lm-eval: numbers, other data, and refusals."""

import json
import math
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from lm_eval.api.registry import metric_registry
from lm_eval.utils import handle_non_serializable, make_table

from lm_latent_eval.contrastive import contrastive_levels
from lm_latent_eval.harness.contrastive import RATES, ContrastiveEntropyTask
from lm_latent_eval.harness.tasks import whole_text
from lm_latent_eval.text.noise import NoiseChannel
from tests.conftest import PROJECT
from tests.harness.test_tokens import byte_level
from tests.stock_tasks import Told, evaluated

TASK, GROUP = "contrastive_entropy_text", "contrastive_entropy"
FOLDER = str(PROJECT / "tasks" / GROUP)

SENTENCES = [
    "the fox saw the fox .",
    "the the fox fox saw saw .",
    "saw",
    "the fox saw the saw the fox saw . the fox saw the fox",
]
SUBSTITUTE = "z"
LEVELS = (10, 30, 50)


def bits(text):
    """Return 3 bits for a substitute, 1 for every other word and 5 for the end."""
    return 5 + sum(3 if word == SUBSTITUTE else 1 for word in text.split())


def unigrams():
    return Told(lambda text: -math.log(2) * bits(text))


def load(texts, **config):
    """Make a task over these texts, as a task file does."""
    splits = {"test": [{"text": text} for text in texts], **config.pop("splits", {})}
    return ContrastiveEntropyTask(
        {
            "task": "mine",
            "class": ContrastiveEntropyTask,
            "custom_dataset": lambda **_: {
                name: Dataset.from_list(rows) for name, rows in splits.items()
            },
            "output_type": "loglikelihood_rolling",
            "test_split": "test",
            "doc_to_text": "",
            "doc_to_target": "text",
            "num_fewshot": 0,
            "metadata": {},
            "metric_list": [{"metric": "contrastive_entropy"}],
            **config,
        }
    )


@pytest.fixture
def evaluate(tmp_path):
    """Return what evaluates a model on the sentences, with files in a folder."""
    (tmp_path / "test.txt").write_text("\n".join(SENTENCES) + "\n")
    (tmp_path / "train.txt").write_text(f"{SUBSTITUTE}\n")
    files = {
        "text_file": str(tmp_path / "test.txt"),
        "vocabulary_file": str(tmp_path / "train.txt"),
    }

    def evaluate(lm, metadata=None, **options):
        said = files | (metadata or {})
        return evaluated(lm, [GROUP], FOLDER, metadata=said, **options)

    return evaluate


# -- numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("replicates", [1, 3])
def test_entropies_and_ratios_are_those_of_the_copies(evaluate, replicates):
    """Every substitute costs 2 bits more; the formulas have tests by hand."""
    found = evaluate(unigrams(), metadata={"noise_replicates": replicates})
    numbers, words = found["results"][TASK], torch.tensor([6, 7, 1, 14])
    assert numbers["words,none"] == 28
    counts = [
        [copy.split().count(SUBSTITUTE) for *_, copy in sample["arguments"][1:]]
        for sample in found["samples"][TASK]
    ]
    nats = -2 * math.log(2) * torch.tensor(counts).double().T
    log_p = dict(zip(LEVELS, nats.split(replicates), strict=True))
    mild, more, most = (log_p[level].sum() for level in LEVELS)
    assert 0 > mild > more > most, "premise"
    assert replicates == 1 or log_p[10].sum(1).std() > 0, "premise"
    clean, groups = torch.zeros(4).double(), found["groups"][GROUP]
    for name, units in (
        ("contrastive_entropy", words),
        ("contrastive_entropy_per_sentence", 4),
    ):
        for each in contrastive_levels(clean, log_p, units):
            expected = [(f"{name}@{each.level}%", each.entropy.bits().rate(), numbers)]
            if each.level != 10:
                ratio = f"contrastive_entropy_ratio@{each.level}%/10%"
                rate = each.ratio.rate()
                expected += [(ratio, rate, numbers), (ratio, rate, groups)]
            for at, rate, results in expected:
                assert results[f"{at},none"] == pytest.approx(rate.value)
                assert results[f"{at}_stderr,none"] == pytest.approx(rate.stderr)
    assert "contrastive_entropy_ratio@10%/10%,none" not in numbers
    assert "|contrastive_entropy_ratio@50%/10%|↑  |" in make_table(found, "groups")


def test_requests_are_the_copies_of_the_channels(evaluate, tmp_path):
    """A sentence is asked once with all its copies, which follow from its number."""
    lm = unigrams()
    metadata = {"noise_seed": 3, "noise_replicates": 2, "count_ends": True}
    found = evaluate(lm, metadata=metadata)
    [requests] = lm.calls
    asked = [(r.doc_id, r.doc["distortion"]["level"]) for r in requests]
    levels = (0, 0.1, 0.1, 0.3, 0.3, 0.5, 0.5)
    assert asked == [(n, level) for n in range(4) for level in levels]
    for number, sample in enumerate(found["samples"][TASK]):
        expected = [
            NoiseChannel.preset(level / 100, [SUBSTITUTE]).distort(
                SENTENCES[number].split(), seed=3, name=number, replicate=replicate
            )
            for level in LEVELS
            for replicate in range(2)
        ]
        assert sample["arguments"][0] == whole_text(SENTENCES[number])
        copies = [argument.split() for *_, argument in sample["arguments"][1:]]
        assert copies == expected
        # Samples are JSON.
        read = json.loads(json.dumps(sample, default=handle_non_serializable))
        contrast = read["contrastive_entropy@30%"]
        assert [len(contrast[k]) for k in ("baseline", "distorted")] == [2, 2]
    said = json.loads(json.dumps(found["configs"][TASK]["metadata"]["noise"]))
    assert said["levels"] == [0.1, 0.3, 0.5]
    assert (said["replicates"], said["seed"]) == (2, 3)
    assert said["substitutes"] == f"1 of the words of {tmp_path / 'train.txt'}"
    assert found["results"][TASK]["words,none"] == 28 + 4


def test_requests_are_never_those_of_another_text(evaluate, stock_data, caplog):
    for sentence in ("the fox saw the fox . the saw", "saw saw saw saw"):
        Path("other.txt").write_text(sentence)
        found = evaluate(
            unigrams(), metadata={"text_file": "other.txt"}, cache_requests=True
        )
        assert found["samples"][TASK][0]["arguments"][0] == whole_text(sentence)
    assert "requests are not cached" in caplog.text


def test_distorted_copies_are_no_corpus(backend, evaluate, tmp_path):
    """What counts of them are differences: there is no record of texts."""
    found = evaluate(backend(num_samples=5, unk="closed"), out=tmp_path / "out")
    assert [*tmp_path.rglob(".record_*.lock")], "premise: records are written there"
    assert found["config"]["latent_eval"]["records"] == {}


# -- other data, other units -----------------------------------------------------------


def test_a_training_split_gives_the_substitutes_or_else_the_scored_text(caplog):
    splits = {"train": [{"text": "q r"}, {"text": "r s"}]}
    for more, words, source in (
        ({"splits": splits, "training_split": "train"}, "qrs", "training split"),
        ({}, ["fox", "saw", "the"], "scored text itself"),
    ):
        assert "no vocabulary_file" not in caplog.text
        task = load(["the fox", "saw the"], **more)
        assert task.noise[0.1].channel.vocabulary == [*words]
        said = task.config.metadata["noise"]["substitutes"]
        assert said == f"3 of the words of the {source}"
    assert "no vocabulary_file" in caplog.text


def test_the_text_of_a_document_is_what_the_task_says():
    rows = [{"page": "the fox saw the fox ."}, {"page": "[saw the]"}]
    task = load([], splits={"test": rows}, doc_to_target="page")
    task.build_all_requests()
    texts = [i.args for i in task.instances if i.doc["distortion"]["level"] == 0]
    assert texts == [whole_text(row["page"]) for row in rows]


def test_tokens_of_a_tokenizer_are_distorted_instead(tmp_path):
    byte_level().save_pretrained(tmp_path)
    task = load(SENTENCES, metadata={"noise_tokenizer": str(tmp_path)})
    said = task.config.metadata["noise"]
    assert said["units"] == said["substitutes"].partition(" of ")[2]
    assert said["units"] == f"tokens of {tmp_path}"
    task.build_all_requests()
    noisy = task.noise[0.5].distort(SENTENCES[0], 0)
    assert task.instances[3].args == whole_text(noisy) != whole_text(SENTENCES[0])


def test_other_levels_leave_the_group_empty_and_say_so(evaluate, caplog):
    found = evaluate(unigrams(), metadata={"noise_levels": [0.2, 0.5]})
    assert "contrastive_entropy_ratio@50%/20%,none" in found["results"][TASK]
    assert not [name for name in found["groups"][GROUP] if "@" in name]
    [said] = [r.message for r in caplog.records if "row of the group" in r.message]
    assert f"{TASK}: no contrastive_entropy_ratio@30%/10% and no" in said


# -- what has no number ----------------------------------------------------------------


def test_a_ratio_over_nothing_is_refused(evaluate, caplog):
    found = evaluate(Told(lambda text: -math.log(2) * (100 - bits(text))))
    table = make_table(found) + make_table(found, "groups")
    refused = "refused: the baseline's contrastive entropy is -"
    assert table.count(refused) == 2 * 3  # in the task, and twice in the group
    assert "no contrastive_entropy_ratio" in caplog.text
    json.dumps(found["results"])
    numbers = found["results"][TASK]
    assert numbers["contrastive_entropy@30%,none"] < 0


@pytest.mark.parametrize("score", [-math.inf, math.nan, math.inf])
def test_a_score_that_is_no_number_names_its_sentence(score):
    task = load(["the fox saw .", "saw"])
    for results in ([score, -1.0, -1.0, -1.0], [-1.0, -1.0, score, -1.0]):
        with pytest.raises(ValueError, match=f"'saw' has a .* of {score} nats"):
            task.process_results({"text": "saw"}, results)


BAD = {
    "noise_levels=.*the baseline first": [
        {"noise_levels": value} for value in ([], [0.6], [0.1, 0.1], "10", None, [True])
    ],
    "noise_replicates=": [{"noise_replicates": value} for value in (0, "two")],
    "noise_seed=": [{"noise_seed": -1}],
    "--metadata='noise_level'.*did you mean noise_levels": [{"noise_level": [0.1]}],
    "count_ends=.*true or false": [{"count_ends": "perhaps"}],
    "vocabulary_file=.*expected a path": [{"vocabulary_file": 3}],
    "no such file": [{"vocabulary_file": "nowhere.txt"}],
    "tokens or words": [{"noise_tokenizer": "gpt2", "vocabulary_file": "train.txt"}],
}


def test_options_that_cannot_be():
    for message, every in BAD.items():
        for metadata in every:
            with pytest.raises(ValueError, match=message):
                load(["the fox"], metadata=metadata)


def test_lm_eval_looks_for_no_metric_in_evaluate():
    """It logs an error for each name that it finds neither there nor registered."""
    errors = {f"{name}_stderr" for name in RATES}
    assert {*RATES, *errors} <= {*metric_registry}
