"""Contrastive entropy of other data and other units, and what has no number."""

from __future__ import annotations

import json
import math
import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from datasets import Dataset
from lm_eval.api.registry import aggregation_registry, metric_registry
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from lm_latent_eval.contrastive.text_noise import TextNoise
from lm_latent_eval.contrastive.units import WhiteSpaceWords
from lm_latent_eval.harness.answers import of_whole_text, score_of
from lm_latent_eval.harness.contrastive import NoiseOptions
from lm_latent_eval.harness.tasks import RollingTask, whole_text
from lm_latent_eval.text.noise import NoiseChannel
from tests import contrastive_tasks
from tests.conftest import PROJECT
from tests.contrastive_tasks import (
    FOLDER,
    GROUP,
    SENTENCES,
    TASK,
    Unigrams,
    load,
)


@pytest.fixture
def evaluate(tmp_path):
    return partial(contrastive_tasks.evaluate, folder=tmp_path)


# -- other data, other units -----------------------------------------------------------


def test_a_training_split_gives_the_substitutes():
    splits = {"train": [{"text": "q r"}, {"text": "r s"}]}
    task = load(["the fox"], splits=splits, training_split="train")
    assert task.noise[0.1].channel.vocabulary == ["q", "r", "s"]
    assert task.config.metadata["noise"]["substitutes"] == (
        "3 of the words of the training split"
    )


def test_else_the_scored_text_does_and_says_so(caplog):
    task = load(["the fox", "saw the"])
    assert task.noise[0.1].channel.vocabulary == ["fox", "saw", "the"]
    said = task.config.metadata["noise"]["substitutes"]
    assert said == "3 of the words of the scored text itself"
    assert "no vocabulary_file" in caplog.text


def test_any_data_set_of_the_hub_or_of_files(evaluate, stock_data):
    """Three lines of YAML beside the ones that all these tasks include."""
    rows = [{"page": "the fox saw the fox ."}, {"page": "[saw the]"}]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("mine.yaml").write_text(
        "task: mine\n"
        f"include: {FOLDER / '_levels.yaml'}\n"
        "dataset_path: json\n"
        "dataset_kwargs: {data_files: {test: rows.jsonl}}\n"
        "doc_to_target: page\n"
    )
    found = evaluate(Unigrams(), tasks=["mine"], include_path=Path.cwd())
    assert found["results"]["mine"]["words,none"] == 8
    texts = [sample["arguments"][0] for sample in found["samples"]["mine"]]
    assert texts == [whole_text(row["page"]) for row in rows]


def test_the_demonstration_world_is_distorted_by_its_training_words(evaluate):
    found = evaluate(Unigrams(), tasks=["contrastive_entropy_demo"], limit=3)
    said = found["configs"]["contrastive_entropy_demo"]["metadata"]["noise"]
    assert said["substitutes"].startswith("1 of the words of"), "a file comes first"


def test_tokens_of_a_tokenizer_are_distorted_instead(tiny_gpt2):
    task = load(SENTENCES, metadata={"noise_tokenizer": tiny_gpt2})
    said = task.config.metadata["noise"]
    assert said["units"] == said["substitutes"].partition(" of ")[2]
    assert said["units"] == f"tokens of {tiny_gpt2}"
    task.build_all_requests()
    tokenizer = task.noise[0.5].units.tokenizer
    ids = tokenizer.encode(SENTENCES[0])
    noisy = task.noise[0.5].channel.distort(ids, seed=0, name=0)
    assert noisy != ids
    assert task.instances[3].args == whole_text(tokenizer.decode(noisy))


def test_tasks_of_others_distort_their_documents():
    """What a YAML's ``process_docs`` needs is one bound method."""
    noise = TextNoise(NoiseChannel.preset(0.5, ["z"]), WhiteSpaceWords(), seed=2)
    task = RollingTask(
        config={
            "task": "noisy",
            "custom_dataset": lambda **_: {
                "test": Dataset.from_list([{"text": text} for text in SENTENCES])
            },
            "process_docs": noise.process_docs,
            "output_type": "loglikelihood_rolling",
            "test_split": "test",
            "doc_to_text": "",
            "doc_to_target": "text",
            "num_fewshot": 0,
        }
    )
    task.build_all_requests()
    expected = [whole_text(noise.distort(text, n)) for n, text in enumerate(SENTENCES)]
    assert [instance.args for instance in task.instances] == expected
    assert expected[0] != whole_text(SENTENCES[0]), "premise"


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory):
    """A directory with a tiny causal language model and its tokenizer."""
    import torch
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = str(tmp_path_factory.mktemp("gpt2"))
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        SENTENCES, vocab_size=270, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained.to_str()),
        eos_token="<|end|>",
        bos_token="<|end|>",
        model_max_length=64,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=8,
        n_layer=1,
        n_head=1,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.5,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")  # of lm-eval's own hf model
def test_the_harness_own_models_are_asked_the_same_way(evaluate, tiny_gpt2):
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=tiny_gpt2, device="cpu", batch_size=4)
    found = evaluate(lm)
    total = {
        place: sum(score_of(s["resps"][place][0]) for s in found["samples"][TASK])
        for place in (0, 2)
    }
    bits = (total[0] - total[2]) / 28 / math.log(2)
    numbers = found["results"][TASK]
    assert numbers["contrastive_entropy@30%,none"] == pytest.approx(bits)


def test_other_levels_leave_the_group_empty_and_say_so(evaluate, caplog):
    found = evaluate(Unigrams(), metadata={"noise_levels": [0.2, 0.5]})
    assert "contrastive_entropy_ratio@50%/20%,none" in found["results"][TASK]
    assert not [name for name in found["groups"][GROUP] if "@" in name]
    [said] = [r.message for r in caplog.records if "row of the group" in r.message]
    assert f"{TASK}: no contrastive_entropy_ratio@30%/10% and no" in said


@pytest.mark.parametrize(
    "metadata, metric",
    [
        ({}, "contrastive_entropy_ratio"),
        ({"noise_levels": [0.1, 0.5, 0.2, 0.3]}, "contrastive_entropy_ratio"),
        ({"noise_levels": [0.2]}, "contrastive_entropy"),  # no ratio was asked for
    ],
)
def test_else_nothing_is_said_of_groups(metadata, metric, caplog):
    load(["the fox"], metadata=metadata, metric_list=[{"metric": metric}])
    assert "row of the group" not in caplog.text


# -- what has no number ----------------------------------------------------------------


class Contrary(Unigrams):
    """Likes substitutes."""

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        found = super().loglikelihood_rolling(requests)
        return [
            of_whole_text(request.args, -score_of(answer))
            for request, answer in zip(requests, found, strict=True)
        ]


def test_a_ratio_over_nothing_is_refused(evaluate, caplog):
    found = evaluate(Contrary())
    table = make_table(found) + make_table(found, "groups")
    refused = "refused: the baseline's contrastive entropy is -"
    assert table.count(refused) == 2 * 3  # in the task, and twice in the group
    assert "no contrastive_entropy_ratio" in caplog.text
    json.dumps(found["results"])
    numbers = found["results"][TASK]
    assert numbers["contrastive_entropy@30%,none"] < 0


@pytest.mark.parametrize("score", [-math.inf, math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 2])
def test_a_score_that_is_no_number_names_its_sentence(score, place):
    task = load(["the fox saw .", "saw"])
    results = [-1.0] * 4
    results[place] = score
    with pytest.raises(ValueError, match=f"'saw' has a .* of {score} nats"):
        task.process_results({"text": "saw"}, results)


def test_a_text_is_asked_for(tmp_path):
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    with pytest.raises(ValueError, match="needs a text"):
        manager.load([TASK])


def test_what_is_no_text_is_refused():
    with pytest.raises(
        ValueError, match=r"doc_to_target gives (7|None); expected a text"
    ):
        load(["the fox"], doc_to_target=lambda doc: 7)


BAD = {
    "noise_levels=.*the baseline first": [
        {"noise_levels": value}
        for value in ([], [0], [0.6], [0.1, 0.1], ["10"], "10", None, [True], 30)
    ],
    "noise_replicates=": [{"noise_replicates": value} for value in (0, -1, "two", 1.5)],
    "noise_seed=": [{"noise_seed": -1}],
    "did you mean noise_level": [{"noise_level": [0.1]}],
    "count_ends=.*true or false": [{"count_ends": "perhaps"}],
    "vocabulary_file=.*expected a path": [{"vocabulary_file": 3}],
    "no such file": [{"vocabulary_file": "nowhere.txt"}],
    "tokens or words": [{"noise_tokenizer": "gpt2", "vocabulary_file": "train.txt"}],
}


@pytest.mark.parametrize(
    "message, metadata",
    [(message, metadata) for message, every in BAD.items() for metadata in every],
    ids=str,
)
def test_options_that_cannot_be(message, metadata):
    with pytest.raises(ValueError, match=message):
        load(["the fox"], metadata=metadata)


def test_options_are_read_among_those_of_models():
    found = NoiseOptions.parse(
        {"pretrained": "x", "seed": 9, "noise_levels": 0.2, "noise_replicates": "3"}
    )
    assert found == NoiseOptions(levels=(0.2,), replicates=3)


# -- registries ------------------------------------------------------------------------

ENTRY_POINTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
    "entry-points"
]


@pytest.mark.parametrize(
    "group, registry",
    [
        ("lm_eval.metrics", metric_registry),
        ("lm_eval.aggregations", aggregation_registry),
    ],
)
def test_entry_points_name_what_is_registered(group, registry):
    ours = {name: registry.get(name) for name in registry if name.startswith(GROUP)}
    assert ENTRY_POINTS[group].keys() == ours.keys()
    for name, target in ENTRY_POINTS[group].items():
        module, _, attribute = target.partition(":")
        found = getattr(import_module(module), attribute)
        assert found in (ours[name], getattr(ours[name], "fn", None))
