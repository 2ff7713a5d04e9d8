"""Data of our own for lm-eval's own tasks, and what their runs answered."""

from pathlib import Path

import lm_eval
import pytest
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_latent_eval.harness.answers import of_whole_text, score_of
from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.scoring.texts import Query

STOCK = Path(lm_eval.__file__).parent / "tasks"

# A page as the data set has it; its words after the task's detokenizer; how many words
# and bytes the task counts, in the page as it was.
PAGES = (
    ("Ada saw the fox . \n", "Ada saw the fox .", 6, 19),
    (" = Bo = \n", "? Bo ?", 5, 9),
    ("the é saw \n", "the ? saw", 4, 12),
)
# The last word is to be predicted.
PASSAGES = (
    "Ada saw the fox",
    "the fox saw Bo",
    "Bo saw Ada the",
    "the the fox .",
    "Ada a zebra",
)
# Which is more probable?
PAIRS = (
    ("the fox saw Ada.", "the fox Ada saw."),
    ("Bo saw the fox", "the saw Bo fox"),
    ("Ada saw", "saw Ada."),
    ("the saw.", "saw the"),
)
SPLITS = ("train", "validation", "test")
"""What the wikitext task wants to be there, though it scores the last one."""
TASKS = ["wikitext", "lambada_openai", "blimp_adjunct_island"]


class Told(LM):
    """A model that is told log p of a text, nats, whatever is before it."""

    def __init__(self, log_p):
        super().__init__()
        self.log_p, self.calls = log_p, []

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(self.log_p(request.args[1]), False) for request in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        self.calls.append(requests)
        return [of_whole_text(r.args, self.log_p(r.args[-1])) for r in requests]

    def generate_until(self, requests, disable_tqdm=False):
        raise AssertionError("log-likelihoods only")


def write_pages(pages):
    """Write WikiText."""
    rows = [{"page": page} for page in pages]
    write_dataset(
        "EleutherAI/wikitext_document_level",
        {"wikitext-2-raw-v1": dict.fromkeys(SPLITS, rows)},
    )


def write_stock_data():
    """Write the data sets of ``TASKS`` into the working directory."""
    write_pages(page for page, *_ in PAGES)
    passages = [{"text": text} for text in PASSAGES]
    write_dataset("EleutherAI/lambada_openai", {"default": {"test": passages}})
    pairs = [{"sentence_good": good, "sentence_bad": bad} for good, bad in PAIRS]
    for name in ("nyu-mll/blimp", "blimp"):  # on 0.4, and on 0.5
        write_dataset(name, {"adjunct_island": {"train": pairs}})


def write_arc(questions):
    """Write ARC: questions, their options, and the letter of the right one."""
    rows = [
        {
            "id": str(n),
            "question": question,
            "choices": {"text": options, "label": list("ABCD"[: len(options)])},
            "answerKey": right,
        }
        for n, (question, options, right) in enumerate(questions)
    ]
    write_dataset("allenai/ai2_arc", {"ARC-Easy": dict.fromkeys(SPLITS, rows)})


def tasks(include_path=None, **options):
    """Index the stock tasks that are run here: indexing all takes half a minute."""
    stock = [str(STOCK / name) for name in ("wikitext", "lambada", "blimp")]
    more = [include_path] if isinstance(include_path, str) else include_path or []
    options["include_defaults"] = False
    return TaskManager(include_path=[*stock, *more], **options)


def _plain_names(results):
    """Call the tasks of groups what 0.4 calls them; 0.5 says ``group::task``."""
    return {
        key: {name.rpartition("::")[2]: found for name, found in value.items()}
        if isinstance(value, dict) and key != "config"
        else value
        for key, value in results.items()
    }


def evaluated(lm, names=TASKS, include=None, *, out=None, metadata=None, **options):
    """Evaluate tasks in process, and write records below a folder if one is given."""
    given = {"model_args": "pretrained=tiny", **options}
    found = lm_eval.simple_evaluate(
        model=lm,
        tasks=[*names],
        task_manager=tasks(include, metadata=metadata),
        bootstrap_iters=0,
        evaluation_tracker=out and EvaluationTracker(output_path=str(out)),
        **given,
    )
    return found and _plain_names(found)  # only the first process has any


def log_likelihoods(results):
    """Every answer, by task and document: numbers for whole texts, pairs elsewhere."""

    def plain(name, answer):
        whole = results["configs"][name]["output_type"] == "loglikelihood_rolling"
        return score_of(answer) if whole else answer

    return {
        (name, sample["doc_id"]): [plain(name, resp[0]) for resp in sample["resps"]]
        for name, samples in results["samples"].items()
        for sample in samples
    }


def assert_the_scorer_says_so_alone(results, scorer, rel):
    """A task's name and a document's number choose the draws; ``rel`` is rounding's."""
    found = log_likelihoods(results)

    def alone(name, *texts, context=""):
        """Score the options of a document."""
        queries = [Query(n, name, text, context) for n, text in enumerate(texts)]
        answers = {a.index: a for a in scorer.score_continuations(queries)}
        every = [answers[n] for n in range(len(texts))]
        return [
            (pytest.approx(a.estimate.log_evidence, rel=rel), a.is_greedy)
            for a in every
        ]

    for i, passage in enumerate(PASSAGES):
        context, _, last = passage.rpartition(" ")
        expected = alone(f"lambada_openai/{i}", f" {last}", context=context)
        assert found["lambada_openai", i] == expected
    for i, pair in enumerate(PAIRS):
        options = alone(f"blimp_adjunct_island/{i}", *(f" {one}" for one in pair))
        expected = [log_p for log_p, _ in options]
        assert expected == [a for a, _ in found["blimp_adjunct_island", i]]
