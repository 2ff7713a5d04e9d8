"""The most probable latents of texts against a list of all of them."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch

import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.latent import Description, Span
from lm_latent_eval.models.kglm.latents import Mention, Walks
from lm_latent_eval.report.latents import picture
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import END
from tests import tiny_models
from tests.test_laws import TINY_MODELS, write_with_words, written
from tests.tiny_steps import TinyConfig, TinyHMM

TEXT = "the the zzz"


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_the_best_are_those_of_all(name, tmp_path):
    model = lm_latent_eval.load(written(name, tmp_path))
    scorer = model._scorer({"unk": "closed", "num_samples": 5000}, quiet=True)
    [found] = scorer.best_latents([Query(0, "text/0", TEXT)], 3)
    ids = [*model.checkpoint.tokenizer(TEXT).ids, END]
    every = TINY_MODELS[name].case().log_joint(ids).sort(descending=True).values
    assert found.words == TEXT.split()
    assert all(latent.is_exact for latent in found.latents)
    log_p = [latent.log_joint for latent in found.latents]
    assert log_p == pytest.approx(every[: len(log_p)].tolist(), abs=1e-9)
    assert len(log_p) == min(3, int(every.isfinite().sum()))
    shares = [latent.share for latent in found.latents]
    total = every.logsumexp(0).item()
    assert shares == pytest.approx([math.exp(x - total) for x in log_p], abs=1e-9)


def test_a_narrow_search_says_that_shares_are_bounds(tmp_path):
    model = lm_latent_eval.load(written("kglm", tmp_path))
    scorer = model._scorer({"unk": "closed", "num_samples": 4}, quiet=True)
    wide = model._scorer({"unk": "closed", "num_samples": 5000}, quiet=True)
    query = [Query(0, "text/0", TEXT)]
    [few], [all_of_them] = (s.best_latents(query, 4) for s in (scorer, wide))
    exact = {latent.description: latent.share for latent in all_of_them.latents}
    assert not any(latent.is_exact for latent in few.latents)
    same = [x for x in few.latents if x.description in exact]
    assert same, "premise"
    assert all(latent.share > exact[latent.description] for latent in same)


@pytest.mark.parametrize(
    ("graph", "links", "again"),
    [
        (tiny_models.plain_graph, "knows of Ada or likes of Ada", ""),
        (tiny_models.full_graph, "knows of Ada", " or itself"),
    ],
)
def test_a_walk_names_nodes_and_relations(graph, links, again):
    model = tiny_models.kglm(graph())
    names = model.knowledge.node_names
    ada, bo = (names.index(name) for name in ("Ada", "Bo"))
    derived = Mention.DERIVED
    kinds = [Mention.NEW, Mention.CONTINUE, derived, derived, Mention.NONE]
    walks = Walks(
        torch.tensor([[[int(kind) for kind in kinds]]]),
        torch.tensor([[[ada, ada, bo, bo, 0]]]),
    )
    found = model.describe(["the", "Ada", "the", "zzz"], walks, str)
    told = f"[the Ada](Ada) [the](Bo: {links}) [zzz](Bo: {links}{again})"
    assert found.text == told
    assert [span.group for span in found.spans] == [ada, bo, bo]


@pytest.mark.parametrize("name", ["lrlm", "nklm"])
def test_copied_names_have_topic_and_relation(name):
    model = TINY_MODELS[name].build()
    topics = model.knowledge
    long = int((topics.length(torch.arange(len(topics.naming_alias))) > 1).nonzero()[0])
    fact = int(topics.naming_fact[long])
    names, offsets = torch.tensor([[[0, 1, 1, 1]]]), torch.tensor([[[0, 0, 1, 0]]])
    latents = SimpleNamespace(source=names * (1 + long), offset=offsets)
    topic = topics.names[int(topics.fact_topic[fact]) - 1]
    label = f"{topic}: relation {int(topics.fact_relation[fact])}"
    found = model.describe(["the", "Ada", "Bo", "Ada"], latents, str)
    assert found.text == f"the [Ada Bo]({label}) [Ada]({label})"


@pytest.mark.parametrize("name", ["entitynlm", "lda", "lrlm", "nklm", "rnng"])
def test_the_command(name, tmp_path, capsys):
    path, data = written(name, tmp_path / name), tmp_path / "texts.txt"
    data.write_text("the the\n")
    command = ["latents", path, "--data", str(data), "--top", "2"]
    assert main(command) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "0: the the"
    assert 1 <= len(rest) <= 2
    assert all(" nats, " in line and line.startswith("  -") for line in rest)
    for suffix in ("jsonl", "html"):
        output = tmp_path / f"latents.{suffix}"
        assert main([*command, "--output", str(output)]) == 0
    row = json.loads((tmp_path / "latents.jsonl").read_text())
    assert row["words"] == ["the", "the"]
    shown = rest[0].split("): ")[0].strip().split(" nats")[0]
    assert f"{row['latents'][0]['log_joint']:.4f}" == shown
    page = (tmp_path / "latents.html").read_text()
    assert ("<svg" in page) == (name == "rnng")
    assert shown in page


def test_a_table_of_texts_is_read_as_surprisal_reads_it(tmp_path, capsys):
    path, data = written("rnng", tmp_path / "rnng"), tmp_path / "texts.csv"
    data.write_text("item,word,sentence\n1,the,the the\n")
    command = ["latents", path, "--data", str(data), "--top", "1"]
    assert main([*command, "--column", "sentence"]) == 0
    assert capsys.readouterr().out.startswith("0: the the\n")
    assert main(command) == 2
    assert "has no column 'text'" in capsys.readouterr().err


def test_pictures_escape_what_they_show():
    words = ["<b>", "a&b", "c"]
    tree = Description("", (Span(0, 2, ""), Span(0, 3, "")), is_tree=True)
    drawn = picture(words, tree)
    assert drawn.count("<line") == 4
    assert "&lt;b&gt;" in drawn
    marked = picture(words, Description("", (Span(0, 2, "<i>", 1),)))
    assert "<b>" not in marked
    topics = [Span(n, n + 1, "topic 1: a b", 1) for n in range(2)]
    shown = picture(words, Description("", (*topics, Span(2, 3, "topic 2: c", 2))))
    assert shown.count("<rt>topic 1</rt>") == 1, "not over each word of a run"
    assert shown.count("<li") == 2 and shown.count("topic 1: a b") == 1
    assert "&lt;i&gt;" in marked


class Described(TinyHMM):
    def describe(self, words, states, decode):
        return Description(f"{len(words)} words of states {states[0, 0].tolist()}")


@pytest.mark.parametrize(
    ("kind", "told"), [(TinyHMM, r"\[[\d, ]+\]"), (Described, r"2 words of states .*")]
)
def test_models_of_other_packages_show_codes_or_what_they_say(kind, told, tmp_path):
    model = kind(TinyConfig()).double().eval().requires_grad_(False)
    write_with_words(model, tmp_path)
    opened = lm_latent_eval.load(tmp_path, model=f"{kind.__module__}:{kind.__name__}")
    scorer = opened._scorer({"unk": "closed", "num_samples": 500}, quiet=True)
    [found] = scorer.best_latents([Query(0, "text/0", "the fox")], 2)
    best, second = found.latents
    assert best.is_exact and best.log_joint > second.log_joint
    for latent in found.latents:
        assert re.fullmatch(told, latent.description.text)


def test_models_without_latents_are_refused(tmp_path, capsys):
    path, data = written("lstm", tmp_path / "lstm"), tmp_path / "texts.txt"
    data.write_text("the\n")
    assert main(["latents", path, "--data", str(data)]) == 2
    assert "has no latents" in capsys.readouterr().err
