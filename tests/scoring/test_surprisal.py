"""Surprisal by word against sums over every latent of every prefix."""

from __future__ import annotations

import math
from itertools import pairwise

import pandas as pd
import pytest
import torch

import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.inference.discrete import NARROWEST, PASSES
from lm_latent_eval.scoring.inside import surprisal
from lm_latent_eval.scoring.inside.prefixes import Prefixes, divided
from lm_latent_eval.scoring.inside.regions import Regions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import END
from tests.test_laws import TINY_MODELS, write_with_words, written
from tests.tiny_steps import TinyConfig, TinyHMM, log_p

EXACTLY = {"rel": 0, "abs": 1e-9}
MODELS = ("entitynlm", "kglm", "lrlm", "lstm", "nklm", "rnng")
TEXT = "the zzz the"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Every tiny model that reads from left to right, as a checkpoint."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: written(name, folder / name) for name in MODELS}
    return {name: lm_latent_eval.load(path) for name, path in paths.items()}


def truth(name, model, text, *, ends):
    """Log p of every prefix of a text, from the empty one on."""
    case = TINY_MODELS[name].case()
    ids = model.checkpoint.tokenizer(text).ids + [END] * ends
    return [0.0, *(case.log_p(ids[: n + 1]).item() for n in range(len(ids)))]


@pytest.mark.parametrize("name", MODELS)
def test_each_word_is_the_ratio_of_two_sums(opened, name):
    model = opened[name]
    table = model.surprisal([TEXT], unk="closed", num_samples=2000)
    log_prefix = truth(name, model, TEXT, ends=True)
    assert [*table.bound] == ["exact"] * 4
    assert [*table.error_nats] == [0.0] * 4
    steps = [a - b for a, b in pairwise(log_prefix)]
    assert [*table.surprisal_nats] == pytest.approx(steps, **EXACTLY)
    assert [*table.word] == ["the", "zzz", "the", surprisal.END]
    assert [*table.unknown] == [False, True, False, False]
    [whole] = model.log_likelihood([TEXT], unk="closed", num_samples=2000)
    assert -table.surprisal_nats.sum() == pytest.approx(whole.log_evidence, **EXACTLY)


def test_a_beam_is_exact_where_it_holds_every_tree_and_below_elsewhere(opened):
    model, text = opened["rnng"], "the zzz the zzz"
    how = {"unk": "closed", "estimator": "beam"}
    whole = model.surprisal([text], num_samples=2000, **how)
    log_prefix = truth("rnng", model, text, ends=True)
    steps = [a - b for a, b in pairwise(log_prefix)]
    assert [*whole.surprisal_nats] == pytest.approx(steps, **EXACTLY)
    narrow = model.surprisal([text], num_samples=2, **how)
    assert narrow.error_nats.isna().any() and (narrow.bound == "none").any()
    below = (narrow.surprisal_nats - whole.surprisal_nats).cumsum()
    assert (below > -1e-9).all() and below.iloc[-1] > 1e-3


def test_company_moves_nothing_and_regions_add_up(opened):
    texts = [TEXT, "the the", "zzz"]
    for name in ("kglm", "rnng", "lstm"):
        model, how = opened[name], {"unk": "closed", "num_samples": 20}
        together = model.surprisal(texts, **how)
        alone = model.surprisal(texts, batch_size=1, **how)
        pd.testing.assert_frame_equal(together, alone, check_exact=False, atol=1e-9)
        table = model.surprisal(["the | zzz the", "the | the"], regions=True, **how)
        assert [*table.word] == [
            "the",
            "zzz the",
            surprisal.END,
            "the",
            "the",
            surprisal.END,
        ]
        first = together[together.text_id == 0].surprisal_nats.to_list()
        found = table[table.text_id == 0].surprisal_nats.to_list()
        added = [first[0], first[1] + first[2], first[3]]
        assert found == pytest.approx(added, **EXACTLY)


class GardenPath(TinyHMM):
    """Two readings of two states each; only the rare one goes on with word 5."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        begin = torch.tensor([[0.55, 0.41, 0.03, 0.01]])
        within = torch.tensor([[0.7, 0.3, 0, 0], [0.4, 0.6, 0, 0]])
        rows = torch.cat([within, within.flip(0, 1), begin])
        words = torch.full((4, 6), 1e-9)
        words[:, 4], words[2:, 5] = 1.0, torch.tensor([0.1, 0.3])
        self.transitions = torch.nn.Parameter(rows.clamp_min(1e-9).log())
        self.emissions = torch.nn.Parameter((words / words.sum(1, True)).log())

    def begin(self, batch):
        return (torch.full_like(batch.length[:, None], 4),)


COPIES = 150
PATH = "fox fox fox fox fox the"


@pytest.fixture(scope="module")
def garden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("garden")
    model = GardenPath(TinyConfig()).double().eval().requires_grad_(False)
    write_with_words(model, folder)
    name = f"{__name__}:{GardenPath.__name__}"
    return model, lm_latent_eval.load(folder, model=name)


def prefix_rows(model, copies, text, **options):
    """Return scorer and rows of prefix sums of equal texts of different streams."""
    scorer = model._scorer({"unk": "closed", **options}, quiet=True)
    texts = [Regions.of_words(Query(n, f"text/{n}", text)) for n in range(copies)]
    sentences = {s.text.name: s for t in texts for s in divided(scorer.cut, t)}
    ordered = [sentence.text for sentence in sentences.values()]
    bar = scorer.evaluation.bar(0, "words")
    found = Prefixes(scorer.evaluation)._weighed(ordered, sentences, bar)
    return scorer.evaluation.method, [rows for _, rows in found]


@pytest.mark.parametrize("num_samples", [10, 80, 100])
def test_prefixes_of_a_garden_path(garden, num_samples):
    """Its reading turns at the last word: every mean is right, intervals hold."""
    tiny, model = garden
    ids = model.checkpoint.tokenizer(PATH).ids
    how = {"estimator": "dpf", "num_samples": num_samples}
    method, rows = prefix_rows(model, COPIES, PATH, **how)
    exact = [log_p(tiny, ids[:n]) for n in range(len(ids) + 1)]
    assert exact[-2] - exact[-1] > 3, "premise: a garden path"
    for n in range(1, len(ids) + 1):
        passes = torch.cat([method.unbiased(row.log_w[n]) for row in rows])
        ratio = (passes - exact[n]).exp()
        error = ratio.std() / math.sqrt(len(ratio))
        assert abs(ratio.mean() - 1) < 5 * error + 1e-9
    table = model.surprisal([PATH] * COPIES, unk="closed", **how)
    last = len(ids) - 1
    for n in range(len(ids)):
        words = table[table.word_number == n + 1]
        told = words[words.error_nats.notna()]
        far = (told.surprisal_nats - (exact[n] - exact[n + 1])).abs()
        refuted = (far > 1.96 * told.error_nats + 1e-9).sum()
        noise = math.sqrt(0.05 * 0.95 * COPIES)
        assert refuted <= 0.05 * len(told) + 3 * noise * (len(told) > 0)
        wide = num_samples >= PASSES * NARROWEST
        assert len(told) == COPIES * wide or (wide and n == last)
    ends = table[table.word == surprisal.END]
    assert not (ends.error_nats.notna() & words.error_nats.isna().to_numpy()).any()


def test_a_look_ahead_ends_at_each_word(opened):
    """Passes of a proposal that reads ahead are those of the prefix by itself."""
    model, how = opened["kglm"], {"unk": "closed", "num_samples": 20}
    text = "the Ada zzz the Ada the"
    table = model.surprisal([text], estimator="dpf", **how)
    assert (table.bound == "none").any(), "premise: something was cut"
    words = text.split()
    prefixes = [" ".join(words[: n + 1]) for n in range(len(words))]
    alone = [
        model.log_likelihood([p], contexts=[""], estimator="dpf", **how)[0]
        for p in prefixes
    ]
    total = (-table.surprisal_nats).cumsum()[: len(words)]
    found = [estimate.log_evidence for estimate in alone]
    assert [*total] == pytest.approx(found, abs=1e-9)


def test_models_without_prefixes_are_refused_by_name(tmp_path):
    for name, why in {"lda": "a topic model knows", "srnn": "unnormalised"}.items():
        model = lm_latent_eval.load(written(name, tmp_path / name))
        with pytest.raises(ValueError, match=why):
            model.surprisal(["the the"], unk="closed")


TABLE = "item,text,condition\n7,the zzz,a\n8,zzz the the,b\n"


def test_a_killed_command_goes_on(opened, tmp_path, capsys, monkeypatch):
    path, data = opened["lstm"].checkpoint.directory, tmp_path / "texts.csv"
    data.write_text(TABLE)
    command = ["surprisal", str(path), "--data", str(data), "--unk", "closed"]
    whole = tmp_path / "whole.csv"
    drawn = tmp_path / "figure"
    assert main([*command, "--output", str(whole), "--figure", str(drawn)]) == 0
    for kind, first in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        assert drawn.with_suffix(f".{kind}").read_bytes().startswith(first)
    table = pd.read_csv(whole)
    assert [*table.columns[:5]] == [
        "text_id",
        "item",
        "text",
        "condition",
        "word_number",
    ]
    assert [*table.item] == [7] * 3 + [8] * 4
    assert table.error_nats.eq(0.0).all()

    monkeypatch.setattr(surprisal, "TEXTS", 1)
    scored = surprisal._rows
    for kind in ("csv", "tsv", "jsonl"):
        output, asked = tmp_path / f"parts.{kind}", []

        def stopped(scorer, texts, asked=asked):
            asked += [regions.query.index for regions in texts]
            if len(asked) == 2:
                raise KeyboardInterrupt
            return scored(scorer, texts)

        monkeypatch.setattr(surprisal, "_rows", stopped)
        assert main([*command, "--output", str(output)]) == 130
        assert not output.exists()
        assert "are kept in" in capsys.readouterr().err
        assert main([*command, "--output", str(output)]) == 0
        assert asked == [0, 1, 1]
        read = {
            "csv": pd.read_csv,
            "tsv": lambda path: pd.read_csv(path, sep="\t"),
            "jsonl": lambda path: pd.read_json(path, lines=True),
        }[kind](output)
        pd.testing.assert_frame_equal(read, table, check_dtype=False)
        assert not [*tmp_path.glob("[!.]*.partial.*")]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", "a,b\n1,2\n", "has no column 'text'"),
        ("a.csv", "text,word\nthe,1\n", "has a column 'word'"),
        ("a.tsv", "text\ta\n \t1\n", "row 1: the text is empty"),
        ("a.jsonl", '{"text": "the"}\n{"words": "a"}\n', "line 2: expected"),
    ],
)
def test_tables_that_cannot_be_read(opened, tmp_path, capsys, name, content, why):
    data = tmp_path / name
    data.write_text(content)
    path = opened["lstm"].checkpoint.directory
    command = ["surprisal", str(path), "--data", str(data)]
    assert main([*command, "--output", str(tmp_path / "out.csv")]) == 2
    assert why in capsys.readouterr().err


def test_a_region_is_what_stands_between_marks():
    regions = Regions.of_marks(0, "text/0", "the | un|known fox |\tthe")
    assert regions.query.text == "the unknown fox the"
    assert regions.strings == ["the", "un", "known fox", "the"]
    with pytest.raises(ValueError, match="a region between marks is empty"):
        Regions.of_marks(0, "text/0", "the || fox")
