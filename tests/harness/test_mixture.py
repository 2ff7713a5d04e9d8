"""``latent_mixture`` in lm-eval: stock tasks, nesting, several models, refusals."""

import math

import pandas as pd
import pytest
import yaml
from lm_eval.models.huggingface import HFLM

from lm_latent_eval.estimators.mixtures import log_mixture
from lm_latent_eval.harness.answers import score_of
from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.harness.wrappers.mixture import LatentMixture
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.report.explain import explain
from lm_latent_eval.report.export.statement import Statement
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring import records
from tests import tiny_causal
from tests.harness.test_cot import saved
from tests.harness.test_tokens import byte_level
from tests.stock_tasks import STOCK, evaluated, write_arc
from tests.tiny_checkpoint import conditional, log_likelihoods

PROMPTS = ["{context}", {"name": "twice", "text": "b{context}", "weight": 3}]
PAIRS = [("ab", "a"), ("ab", "b"), ("ba", "ab")]
ROUNDING = 1e-9
"""Of float64 networks whose batches are padded otherwise."""


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Three tiny networks: two with one tokenizer, one with another."""
    found = {}
    for name, tokenizer, seed in (
        ("one", tiny_causal.letters(), 0),
        ("two", tiny_causal.letters(), 1),
        ("other", tiny_causal.unigram(), 2),
    ):
        folder = tmp_path_factory.mktemp(name)
        found[name] = str(tiny_causal.save(folder, tokenizer, seed=seed))
    return found


@pytest.fixture
def mixed(tmp_path, networks):
    def mixed(content, **arguments):
        path = tmp_path / "mixture.yaml"
        path.write_text(yaml.safe_dump(content))
        given = {"base": "hf", "pretrained": networks["one"], "dtype": "float64"}
        if arguments.get("base") == "latent_tokens":
            given["estimator"] = "exact"
        return LatentMixture(mixture=str(path), device="cpu", **{**given, **arguments})

    return mixed


def of(networks, *names):
    return [
        {"name": n, "weight": w, "args": {"pretrained": networks[n]}}
        for n, w in zip(names, (1, 3), strict=False)
    ]


WEIGHTS = [math.log(0.25), math.log(0.75)]


def test_components_are_summed_as_the_backend_answers_them(mixed, networks):
    """Prompts, and models, which score whole texts too."""
    one, two = (
        HFLM(pretrained=networks[name], dtype="float64", device="cpu")
        for name in ("one", "two")
    )
    prompts = mixed({"prompts": PROMPTS})
    models = mixed({"models": of(networks, "one", "two")})
    asked = conditional(*PAIRS)
    plain = one.loglikelihood(asked)
    twice = one.loglikelihood(conditional(*((f"b{c}", text) for c, text in PAIRS)))
    whole = [log_likelihoods(lm, "ab", "baaba") for lm in (one, two, models)]
    for first, second, sums in (
        (plain, twice, prompts.loglikelihood(asked)),
        (plain, two.loglikelihood(asked), models.loglikelihood(asked)),
        whole,
    ):
        for a, b, found in zip(first, second, sums, strict=True):
            nats = log_mixture(WEIGHTS, [score_of(a), score_of(b)])
            assert score_of(found) == pytest.approx(nats, rel=ROUNDING)
            assert str(score_of(found).estimate.bound) == "exact"
            if first is plain:
                assert found[1] == (a[1] and b[1])


def test_one_text_under_two_prompts_is_cut_as_each_cuts_it(mixed, networks):
    """lm-eval 0.4.13's cache of logits would take both cuts for one request."""
    plain = HFLM(pretrained=networks["one"], dtype="float64", device="cpu")
    asked = conditional(("b", "bb"), ("b", "b"))
    found = mixed({"prompts": ["{context}", "{context}b"]}).loglikelihood(asked)
    for (score, _), instance in zip(found, asked, strict=True):
        context, text = instance.args
        parts = [
            plain.loglikelihood(conditional((each, text)))[0][0]
            for each in (context, f"{context}b")
        ]
        expected = log_mixture([math.log(0.5)] * 2, parts)
        assert score == pytest.approx(expected, abs=ROUNDING)


def test_tokenizers_that_differ_mix_as_bytes_alone(mixed, networks):
    content = {"models": of(networks, "one", "other")}
    with pytest.raises(ValueError, match=r"one, other cut strings.*end=prefix"):
        mixed(content)
    with pytest.raises(ValueError, match="cut strings"):
        mixed(content, base="latent_tokens")
    asked, said = conditional(("ab", "a"), ("ab", "b")), {"end": "prefix"}
    found = mixed(content, base="latent_tokens", **said)
    answers = found.loglikelihood(asked)
    said |= {"estimator": "exact", "dtype": "float64", "device": "cpu"}
    one, other = (
        LatentTokens(pretrained=networks[name], **said).loglikelihood(asked)
        for name in ("one", "other")
    )
    for a, b, (log_p, _) in zip(one, other, answers, strict=True):
        nats = log_mixture(WEIGHTS, [score_of(a), score_of(b)])
        assert log_p == pytest.approx(nats, rel=ROUNDING)
    assert sum(math.exp(log_p) for log_p, _ in answers) <= 1 + ROUNDING
    assert "Strings are bytes" in found.get_model_info()["latent_eval"]["vocabulary"]


def test_what_cannot_be_mixed_is_refused(mixed, networks, kglm_directory):
    with pytest.raises(ValueError, match="needs --model_args mixture=FILE"):
        LatentMixture(pretrained=networks["one"])
    with pytest.raises(ValueError, match=r"mixture=FILE.*mixtur is not an argument"):
        LatentMixture(pretrained=networks["one"], mixtur="m.yaml")
    with pytest.raises(ValueError, match=r"mixture=none.yaml: there is no such file"):
        LatentMixture(pretrained=networks["one"], mixture="none.yaml")
    with pytest.raises(ValueError, match=r"base='hff'.*did you mean hf"):
        mixed({"prompts": PROMPTS}, base="hff")
    with pytest.raises(ValueError, match=r"'num_sample' is not an argument of latent_"):
        mixed({"prompts": PROMPTS}, num_sample=20)
    itself = {"name": "both", "base": "latent_mixture"}
    with pytest.raises(ValueError, match="both is a mixture itself"):
        mixed({"models": [itself]})
    half = mixed({"prompts": ["{context} \ud83d"]})
    with pytest.raises(ValueError, match=r"task/0 .*ends in half a character"):
        half.loglikelihood(conditional(("a", "b")))
    words = {"base": "latent_kglm", "args": {"pretrained": str(kglm_directory)}}
    models = [{"name": "words", **words}, *of(networks, "one")]
    with pytest.raises(ValueError, match="words, one cut strings"):
        mixed({"models": models}, pretrained=None, dtype=None)


MMLU = "mmlu_abstract_algebra"
ROWS = [
    ("Which geese came down?", ["twelve", "none", "a fox", "Ada"], 0),
    ("Who saw the fox?", ["Bo", "a heron", "Ada", "nobody"], 2),
    ("What was old?", ["letters", "the bridge", "rain", "a pond"], 1),
]


@pytest.fixture(scope="module")
def bytes_network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    return str(tiny_causal.save(folder, byte_level(), positions=400))


@pytest.fixture
def evaluate(mixed, bytes_network, stock_data, tmp_path):
    write_arc((question, options, "ABCD"[right]) for question, options, right in ROWS)
    mmlu = [
        {"question": question, "subject": "x", "choices": options, "answer": right}
        for question, options, right in ROWS
    ]
    splits = ("test", "validation", "dev")
    write_dataset("cais/mmlu", {"abstract_algebra": dict.fromkeys(splits, mmlu)})

    def run(content, task, arguments=(), **more):
        return evaluated(
            mixed(content, pretrained=bytes_network, **dict(arguments)),
            [task],
            [str(STOCK / "arc"), str(STOCK / "mmlu" / "default")],
            out=tmp_path / "out",
            num_fewshot=0,
            **more,
        )

    return run


def kept_of(folder):
    [path] = folder.rglob("components_*.parquet")
    return pd.read_parquet(path)


def exported(folder):
    [path] = folder.rglob("record_*.parquet")
    return Statement.of(Run.of(*records.read(path))).note


def test_stock_choices_under_prompts(evaluate, tmp_path):
    prompts = ["{context}", "Choose.\n{context}", "{context} Well,"]
    results = evaluate({"prompts": prompts}, "arc_easy")
    rows = kept_of(tmp_path / "out")
    assert len(rows) == 12 * 3
    assert rows.at_least.isna().all(), "a sum, not a draw"
    found = []
    for _, each in rows.groupby(["question", "option"]):
        [log_p] = each.log_likelihood.unique()
        expected = log_mixture(each.log_weight.tolist(), each.log_p.tolist())
        assert log_p == pytest.approx(expected, rel=1e-12)
        found.append(log_p)
    [path] = (tmp_path / "out").rglob("record_*.parquet")
    [record] = records.read(path)
    assert [a.estimate.log_evidence for a in record.answers] == found
    said = " ".join(explain(saved(results, tmp_path / "out")).split())
    assert "a mixture over prompt, all components summed" in said
    carried = results["config"]["latent_eval"]["mixture"]["arc_easy"]
    for row in carried["factors"]["prompt"]:
        own = rows[rows.carried & (rows.prompt == row["name"])]
        share = (own.log_weight + own.log_p - own.log_likelihood).map(math.exp).mean()
        assert row["carries"] == pytest.approx(share) and row["name"] in said
    accuracies = [row["accuracy"] for row in carried["factors"]["prompt"]]
    assert all(acc in (0, 1 / 3, 2 / 3, 1) for acc in accuracies)


def test_drawn_orders_have_intervals(evaluate, tmp_path):
    results = evaluate({"permutations": "all", "draws": 16}, MMLU)
    rows = kept_of(tmp_path / "out")
    assert (rows.at_least <= rows.log_likelihood).all()
    assert (rows.log_likelihood <= rows.at_most).all()
    answers = rows.question.map(lambda number: ROWS[number][2])
    assert (rows.right == (rows.option == answers)).all()
    assert "estimator=is, num_samples=16, seed=0" in exported(tmp_path / "out")
    said = " ".join(explain(saved(results, tmp_path / "out")).split())
    assert "16 drawn for 3 of 3 questions" in said
    assert "the best option is certain (95 % a question) of" in said


def test_sums_have_no_log_weights(mixed, caplog):
    mixed({"prompts": PROMPTS, "draws": 2}, log_weights=True)
    assert not caplog.text
    mixed({"prompts": PROMPTS}, log_weights=True)
    assert "log_weights: no effect, components that are summed have none" in caplog.text


def test_a_base_of_ours_keeps_no_record(evaluate, tmp_path):
    """What it answers is a part of an answer, which is estimated as the part is."""
    said = {"base": "latent_tokens", "estimator": "is", "num_samples": 2, "seed": 5}
    evaluate({"prompts": ["{context}", "a {context}"]}, "arc_easy", said)
    names = [p.name for p in (tmp_path / "out").rglob("*") if p.is_file()]
    kept = [n for n in names if n.endswith((".parquet", ".sqlite"))]
    assert sorted(n.split("_")[0] for n in kept) == ["components", "record"]
    how = "estimator=is, num_samples=2, seed=5"
    assert how in exported(tmp_path / "out")


def test_a_conversation_is_written_as_the_model_reads_it(
    mixed, networks, tmp_path_factory
):
    said = [{"role": "user", "content": "ab"}]
    asked = of(networks, "one", "two")
    for model, mark in zip(asked, "ab", strict=True):
        folder = tmp_path_factory.mktemp("chat")
        tokenizer = tiny_causal.letters()
        tokenizer.chat_template = "{{ messages[0]['content'] }}" + mark
        tokenizer.save_pretrained(folder)
        model["args"]["tokenizer"] = str(folder)
    one = mixed({"models": asked[:1]})
    assert one.apply_chat_template(said) == "aba"
    with pytest.raises(ValueError, match="have different chat templates"):
        mixed({"models": asked}).apply_chat_template(said)
