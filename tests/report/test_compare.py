"""A verdict says no more than the numbers hold."""

import json
import math
import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.estimators.corpus_estimate import CorpusRate
from lm_latent_eval.report import compare as comparing
from lm_latent_eval.report.compare import as_text
from lm_latent_eval.report.results import read
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record, row_of
from tests import tiny_checkpoint

NUM_TEXTS = 60
SPELLED = {"model": "m", "unk": "spelled", "vocabulary": "v"}
KINDS = {
    "exact": 0.0,
    "strict lower": 0.0,
    "stochastic lower": 0.2,
    "estimate of a lower bound": 0.2,
    "none": 0.2,
}


def sides_of(records):
    """Sides of records, whose tables of units are made here."""
    return {
        name: [[r if isinstance(r, Run) else Run.of(r) for r in run] for run in runs]
        for name, runs in records.items()
    }


def compare(sides):
    return comparing.compare(sides_of(sides))


def answer(n, log_likelihood, kind="exact", **more):
    exact = Estimate.exact(log_likelihood, num_tokens=21, estimator="is")
    errors = {"draws_stderr": KINDS[kind], "stderr": 0.0 if kind == "exact" else None}
    estimate = replace(exact, bound=Bound(kind), **errors)
    about = {"text": f"text {n}", "words": 20, "bytes": 100, "stream": f"0/{n}"}
    return Answer(n, estimate, **about | more)


def estimated(record, **changes):
    """The same record with other fields of its estimates."""
    return replace(record, answers=[_estimated(a, changes) for a in record.answers])


def _estimated(answer, changes):
    return replace(answer, estimate=replace(answer.estimate, **changes))


def write(record, path):
    rows = [row_of(answer) for answer in record.answers]
    records.write(path, record.task, record.settings, rows)


def record(
    gain=0.0, kind="exact", seed=0, settings=SPELLED, spread=1.0, texts=NUM_TEXTS
):
    """A model that takes `gain` nats a text less than one without."""
    dice = random.Random(seed)
    nats = [-120 + gain + spread * dice.gauss(0, 1) for _ in range(texts)]
    return Record("t", settings, [answer(n, x, kind) for n, x in enumerate(nats)])


def verdict(a, b):
    [found] = compare({"A": [[a]], "B": [[b]]})
    return found


# -- what decides ----------------------------------------------------------------------

known = partial(estimated, stderr=0.2)
"""Where an independent search agrees, an estimate's error covers its bias."""
BEST, DRAWN = record(3.0), record(3.0, "stochastic lower")
LOWER = {kind: record(0.0, kind, seed=1) for kind in KINDS}
"""Of a worse model."""
LOOSE = LOWER["stochastic lower"]


def flat(gain=0.0, kind="exact", **changes):
    return estimated(record(gain, kind, spread=0.0), **changes)


UNSURE = "B may be the better model"
VERDICTS = {
    "too few": (record(9, texts=9), record(seed=1, texts=9), None, "9 texts are too"),
    "chance": (record(0.1), LOWER["exact"], None, "other texts or draws could turn"),
    "exact": (BEST, LOWER["exact"], "A", "A predicts these texts better: A takes 0.04"),
    "to a bound": (BEST, LOWER["strict lower"], None, UNSURE),
    "to draws": (BEST, LOOSE, None, UNSURE),
    "a bound": (record(3.0, "strict lower"), LOWER["exact"], "A", "by at least that"),
    "draws": (DRAWN, LOWER["exact"], "A", "by at least that"),
    "nothing": (record(3.0, "none"), LOWER["exact"], None, "of A bounds nothing"),
    "both known": (known(DRAWN), known(LOOSE), "A", "A predicts these texts better"),
    # An error of the bound is none of log p.
    "a known bound": (BEST, known(LOWER["estimate of a lower bound"]), None, UNSURE),
    "a sure bound": (BEST, estimated(LOWER["strict lower"], stderr=0.0), None, UNSURE),
    "better by a bound": (
        known(record(3.0, "estimate of a lower bound")),
        LOWER["exact"],
        "A",
        "by at least that much",
    ),
    # The certificate takes log 20 = 3 nats a corpus, so 0.04 a text are not enough.
    "a certificate": (
        flat(0.04, "stochastic lower", draws_stderr=0.0),
        flat(),
        None,
        "certificate of its draws takes more",
    ),
    "none is needed": (flat(0.04, "strict lower"), flat(), "A", "by at least that"),
    # An upper bound of draws holds on average alone: it is no error.
    "upper bounds": (BEST, estimated(LOOSE, upper=-120.0), None, UNSURE),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_verdict_goes_as_far_as_bounds_and_errors_allow(case):
    a, b, better, said = VERDICTS[case]
    found = verdict(a, b)
    assert found.better == better
    assert said in found.verdict
    again = verdict(b, a)
    assert again.decided is found.decided
    assert again.verdict == found.verdict.translate(str.maketrans("AB", "BA"))


def test_one_network_under_two_processes_is_two_models():
    sides = [
        record(gain, settings={**SPELLED, "checkpoint": "c", "process": process})
        for gain, process in ((0.0, "blocks of 2"), (1.0, "blocks of 4"))
    ]
    found = verdict(*sides)
    assert any("a bound of one is none of the other" in note for note in found.notes)
    same = verdict(sides[0], replace(sides[1], settings=sides[0].settings))
    assert not any("two processes" in note for note in same.notes)


@pytest.mark.parametrize("degrees", [math.inf, 2.0])
def test_errors_over_draws_are_those_of_each_model(degrees):
    """What draws have missed adds over texts as it is, and few passes tell less."""
    told = partial(estimated, stderr=0.5, draws_stderr=0.5, draws_degrees=degrees)
    a, b = told(record(3.0, "stochastic lower", texts=3)), record(seed=1, texts=3)
    found = verdict(a, b).difference
    units = torch.tensor([answer.bytes for answer in a.answers])
    alone = CorpusRate.bits([answer.estimate for answer in a.answers], units)
    assert found.draws_stderr == pytest.approx(alone.monte_carlo_stderr)
    both = verdict(a, told(record(0.0, "stochastic lower", seed=1, texts=3)))
    of_both = both.difference.draws_stderr
    assert of_both > 1.2 * found.draws_stderr
    assert both.difference.stderr >= of_both


def test_texts_that_share_draws_err_alike():
    """As copies of a text do that one cache answered."""
    drawn = record(3.0, "stochastic lower", texts=16)
    shared = replace(drawn, answers=[replace(a, stream="0/0") for a in drawn.answers])
    apart, alike = (verdict(a, record(texts=16)).difference for a in (drawn, shared))
    more = alike.draws_stderr**2 - apart.draws_stderr**2
    assert more == pytest.approx((0.2 / 100 / math.log(2)) ** 2 * (1 - 1 / 16))


def test_unlike_texts_are_refused():
    other = record(seed=1, texts=50)
    with pytest.raises(ValueError, match="A has 60 texts and B 50, of which 50"):
        verdict(record(), other)
    found = verdict(record(1.0), replace(other, finished=False))
    assert found.difference.num_texts == 50
    assert "B is not finished" in " ".join(found.notes)


def closed(record, vocabulary):
    settings = {**SPELLED, "unk": "closed", "vocabulary": vocabulary}
    answers = [replace(a, unspelled=1) for a in record.answers]
    return replace(record, settings=settings, answers=answers)


def test_words_compare_within_one_vocabulary_only():
    a, b = closed(record(1.0), "v"), closed(record(0.0, seed=1), "v")
    assert verdict(a, b).metric == "bits a word", "strings were not scored"
    for other in (closed(b, "w"), record(0.0, seed=1)):
        with pytest.raises(ValueError, match=r"do not compare.*bits per byte do"):
            verdict(a, other)


def test_runs_of_a_side_need_the_same_texts():
    cut = replace(record(texts=5), finished=False)
    with pytest.raises(ValueError, match="a run of A is not finished"):
        compare({"A": [[record()], [cut]], "B": [[record(3.0)]]})
    [found] = compare({"A": [[cut]], "B": [[record(3.0)]]})
    assert found.difference.num_texts == 5


def test_runs_of_a_model_are_one_side_with_their_spread():
    runs = [[record(gain, seed=seed)] for seed, gain in enumerate((1.0, 3.0, 2.0))]
    [found] = compare({"A": runs, "B": [[record(0.0, seed=9)]]})
    rates, difference = found.rates[0], found.difference
    assert len(rates) == 3
    assert rates.std().item() == pytest.approx(0.01 / math.log(2), rel=0.4)
    assert difference.runs_stderr == pytest.approx(rates.std().item() / 3**0.5)
    assert "3 runs" in as_text([found])
    assert "over runs" in as_text([found])
    with pytest.raises(ValueError, match="another run of A"):
        compare({"A": [runs[0], [record(texts=9)]], "B": runs[1:2]})


def questions(right, margin=5.0, error=0.0):
    answers = []
    for n, is_right in enumerate(right):
        for option in range(2):
            log_p = -10 - margin * (option == 1)
            about = {"text": f"{n} {option}", "option": option, "is_greedy": False}
            one = answer(n, log_p, accuracy=float(is_right), **about)
            answers.append(_estimated(one, {"draws_stderr": error}))
    return Record("q", SPELLED, answers)


def test_ties_are_said_and_no_answers():
    right = questions([True] * 10)
    tied = [replace(each, tied=True, accuracy=0.5) for each in right.answers[:6]]
    found = verdict(replace(right, answers=[*tied, *right.answers[6:]]), right)
    assert found.accuracy.accuracy == (0.7, 1.0)
    assert "A: of 3 questions rounding alone chooses" in as_text([found])


def unjudged():
    """Answers to questions of which nothing says what is right."""
    asked = questions([True] * 20)
    answers = [replace(answer, accuracy=None) for answer in asked.answers]
    return replace(asked, task="unjudged", answers=answers)


def test_a_task_without_right_answers_leaves_the_others(caplog):
    runs = {"A": [[unjudged(), record()]], "B": [[unjudged(), record(3.0)]]}
    [found] = compare(runs)
    assert found.task == "t" and found.decided
    assert "unjudged: A and B have no question" in caplog.text
    with pytest.raises(ValueError, match="no question in common whose answer"):
        compare({name: [[unjudged()]] for name in "AB"})


def test_answers_are_compared_by_question():
    a = questions([True] * 20 + [False] * 5)
    b = questions([True] * 10 + [False] * 15)
    found = verdict(a, b)
    assert found.decided
    assert "A alone answers 10 of 25 questions rightly, B alone 0" in found.verdict
    unsure = verdict(questions([True] * 20 + [False] * 5, margin=0.1, error=1.0), b)
    assert not unsure.decided
    assert unsure.uncertain == (10, 0)
    assert "10 of them within Monte Carlo error" in unsure.verdict
    assert "80.0% (61% to 91%)" in as_text([found]), "Wilson's interval, of 20 in 25"


def test_other_questions_in_the_same_places_are_refused():
    asked = questions([True] * 10 + [False] * 10)
    places = [19 - answer.index for answer in asked.answers]
    turned = [replace(a, index=n) for a, n in zip(asked.answers, places, strict=True)]
    other = replace(asked, answers=sorted(turned, key=lambda answer: answer.index))
    with pytest.raises(ValueError, match="question 0 is another one in B than in A"):
        verdict(asked, other)


def test_options_of_the_same_draws_may_err_in_opposite_directions():
    """58 of 100 thoughts are for one, the others for the other."""
    weights = torch.tensor([0.9] * 58 + [0.1] * 42).double()
    options = [(weights, 0), (1 - weights, 1)]

    def is_sure(streams, keep):
        answers = []
        for (w, option), stream in zip(options, streams, strict=True):
            found = Estimate.from_log_weights(w.log(), num_tokens=1)
            found = found if keep else replace(found, log_weights=())
            about = {"option": option, "is_greedy": False, "accuracy": 1.0}
            one = answer(0, 0.0, stream=stream, **about)
            answers.append(replace(one, estimate=found))
        [is_sure] = Run.of(Record("q", SPELLED, answers)).units["is_sure"]
        return is_sure

    assert is_sure("ab", keep=True)
    assert not is_sure("aa", keep=True)
    assert not is_sure("aa", keep=False)


def test_names_in_files_command_no_terminal():
    settings = {**SPELLED, "checkpoint": "c\x1b[2J", "estimator": "is\x1b[31m"}
    odd = {**settings, "tokens_are": "\x9b1m", "model": "m\nA predicts them better"}
    a, b = record(3.0, settings=odd), record(seed=1)
    a, b = (replace(each, task="t\x07\r") for each in (a, b))
    asked = replace(questions([True, False]), task="\x1b[1m", settings=odd)
    for found in (verdict(a, b), verdict(asked, asked)):
        for line in as_text([found]).split("\n"):
            assert line == "" or line.isprintable()
            assert not line.startswith("A predicts them")


SAMPLE = {
    "doc_id": 0,
    "arguments": {"gen_args_0": {"arg_0": "Ada saw the fox ."}},
    "resps": [["-12.5"]],
    "filter": "none",
    "word_perplexity": [-12.5, 5],
    "bits_per_byte": [-12.5, 17],
}


def hf_folder(folder, task=None, **changes):
    return lm_eval_folder(folder, "t", [SAMPLE | changes], task or {}, sha="abc")


def lm_eval_folder(folder, name, samples, task, *, sha="", results=None):
    """Write what lm-eval leaves of a network of the hub and one task."""
    folder.mkdir()
    config = {"model": "hf", "model_args": {"pretrained": "gpt2"}, "model_sha": sha}
    content = {"config": config, "configs": {name: task}, "results": results or {}}
    (folder / "results_1.json").write_text(json.dumps(content))
    lines = "".join(json.dumps(sample) + "\n" for sample in samples)
    (folder / f"samples_{name}_1.jsonl").write_text(lines)
    return folder


def test_models_that_are_not_ours_are_read_from_the_sample_log(tmp_path):
    [found] = read(hf_folder(tmp_path / "hf"))
    [only] = found.answers
    assert (only.words, only.bytes) == (5, 17)
    assert only.estimate == Estimate.exact(-12.5, num_tokens=5)
    assert found.settings["checkpoint"] == "abc"
    # lm-eval 0.5 asks for a whole text after nothing, and is answered in a pair.
    task = {"output_type": "loglikelihood_rolling"}
    asked = {"gen_args_0": {"arg_0": "", "arg_1": "Ada saw the fox ."}}
    answered = {"arguments": asked, "resps": [[["-12.5", "False"]]]}
    [of_next] = read(hf_folder(tmp_path / "next", task, **answered))
    assert of_next.answers == found.answers
    (tmp_path / "hf" / "samples_t_1.jsonl").unlink()
    with pytest.raises(ValueError, match="--log_samples"):
        read(tmp_path / "hf")


def test_documents_of_a_task_with_spaces_in_its_name_are_found(tmp_path):
    document = SAMPLE | {"doc": {"text": "Ada saw the fox ."}, "target": ""}
    folder = lm_eval_folder(tmp_path / "hf", "my task", [document], {})
    [found] = read(folder)
    assert found.units["fields"].tolist() == [{"text": "Ada saw the fox ."}]


def test_folders_without_one_answer_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="--output_path"):
        read(tmp_path)
    for name in "ab":
        hf_folder(tmp_path / name)
    with pytest.raises(ValueError, match="several models: name one of"):
        read(tmp_path)


def test_from_the_command_line(spelled_directory, tmp_path, capsys, refused):
    """Estimate files of two models, and a hub model's results."""
    kglm, writing = str(spelled_directory), tiny_checkpoint.orthography()
    lstm = tiny_checkpoint.write(tmp_path / "l", tiny_checkpoint.lstm(), writing)
    text = tmp_path / "texts.txt"
    text.write_text("Ada saw the fox .\n")
    of_kglm, of_lstm = str(tmp_path / "k.jsonl"), str(tmp_path / "l.jsonl")
    hf = str(hf_folder(tmp_path / "hf"))
    few = ["--num-samples", "9"]
    for model, output, options in ((kglm, of_kglm, few), (str(lstm), of_lstm, [])):
        command = ["estimate", model, "--data", str(text), "--output", output, *options]
        assert main(command) == 0
    capsys.readouterr()
    assert main(["compare", of_kglm, of_lstm, hf]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Undecided:") == 3, "one text decides nothing"
    assert f"hf: {hf}" in shown
    assert "auto, K = 9" in shown
    assert "no end of a text is charged" in shown
    same = str(tmp_path / "." / ".." / tmp_path.name / "l.jsonl")
    for sides in ([of_lstm], [of_lstm, of_lstm], [of_lstm, same]):
        refused("compare", *sides)
    assert main(["compare", of_kglm, of_lstm, "--metric", "f1"]) == 0
    assert "--metric: no effect, there are no questions" in capsys.readouterr().err
