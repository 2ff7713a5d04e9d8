"""Two dozen of lm-eval's own task files, unchanged, on rows of ours.

Whichever line of lm-eval is installed, their accuracies are what their logged
log-likelihoods say, and what they generate is scored.
"""

from __future__ import annotations

import math

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.tasks import write_dataset
from tests.stock_tasks import PAIRS, PASSAGES, STOCK, TASKS, log_likelihoods

BLIMP = (
    "adjunct_island",
    "anaphor_gender_agreement",
    "anaphor_number_agreement",
    "animate_subject_passive",
    "determiner_noun_agreement_1",
    "distractor_agreement_relational_noun",
    "irregular_past_participle_verbs",
    "npi_present_1",
    "principle_A_c_command",
    "regular_plural_subject_verb_agreement_1",
    "sentential_negation_npi_scope",
    "wh_vs_that_no_gap",
)
LETTERS = ["A", "B", "C", "D"]
ENDINGS = ["Ada", "the fox", "Bo .", "saw the fox"]


def choices(right: int) -> dict[str, object]:
    """Choices as ARC and OpenBookQA have them."""
    return {
        "choices": {"text": ENDINGS, "label": LETTERS},
        "answerKey": LETTERS[right],
    }


ROWS = {
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy"),
    "boolq": ("aps/super_glue", "boolq"),
    "copa": ("aps/super_glue", "copa"),
    "gsm8k": ("openai/gsm8k", "main"),
    "hellaswag": ("Rowan/hellaswag", "default"),
    "lambada_standard": ("cimec/lambada", "default"),
    "openbookqa": ("allenai/openbookqa", "main"),
    "piqa": ("baber/piqa", "default"),
    "sciq": ("allenai/sciq", "default"),
    "winogrande": ("allenai/winogrande", "winogrande_xl"),
}
"""Task -> its data set, and which part of it."""
FOLDERS = ("arc", "gsm8k", "hellaswag", "openbookqa", "piqa", "sciq", "winogrande")


def row(task: str, n: int) -> dict[str, object]:
    """Make the n-th row of a task's data; its answers differ."""
    seen = ["the fox", "Ada", "the saw"][n]
    rows: dict[str, dict[str, object]] = {
        "arc_easy": {"question": f"Who saw {seen}", **choices(n)},
        "boolq": {"passage": f"Bo saw {seen}", "question": "saw Bo", "label": n % 2},
        "copa": {
            "premise": f"Ada saw {seen}.",
            "question": ["cause", "effect", "cause"][n],
            "choice1": "Bo saw the fox.",
            "choice2": "The fox saw.",
            "label": n % 2,
        },
        "gsm8k": {"question": f"How many saw {seen}", "answer": f"Ada #### {n}"},
        "hellaswag": {
            "ctx_a": f"Ada saw {seen}.",
            "ctx_b": "bo",
            "activity_label": "fox",
            "endings": ENDINGS,
            "label": str(n),
        },
        "lambada_standard": {"text": PASSAGES[n]},
        "openbookqa": {"question_stem": f"Bo saw {seen}", **choices(n + 1)},
        "piqa": {
            "goal": seen,
            "sol1": "saw the fox",
            "sol2": "the Bo the",
            "label": n % 2,
        },
        "sciq": {
            "support": f"Ada saw {seen}",
            "question": "Who saw",
            "distractor1": "Bo",
            "distractor2": "the",
            "distractor3": "saw",
            "correct_answer": "Ada",
        },
        "winogrande": {
            "sentence": f"Ada saw {seen} and _ saw the fox",
            "option1": "Ada",
            "option2": "the Bo",
            "answer": str(1 + n % 2),
        },
    }
    return rows[task]


@pytest.fixture
def results(tiny, stock_data):
    pairs = [{"sentence_good": good, "sentence_bad": bad} for good, bad in PAIRS]
    for name in ("nyu-mll/blimp", "blimp"):  # on 0.4, and on 0.5
        write_dataset(name, {part: {"train": pairs} for part in BLIMP})
    of_set: dict[str, dict[str, dict[str, object]]] = {}
    for task, (name, part) in ROWS.items():
        rows = [row(task, n) for n in range(3)]
        splits = ("train", "validation", "test")
        of_set.setdefault(name, {})[part] = dict.fromkeys(splits, rows)
    for name, parts in of_set.items():
        write_dataset(name, parts)
    folders = [*FOLDERS, "wikitext", "lambada", "blimp"]
    folders += ["super_glue/boolq", "super_glue/copa"]
    manager = TaskManager(
        include_path=[str(STOCK / folder) for folder in folders],
        include_defaults=False,
    )
    return lm_eval.simple_evaluate(
        model=LatentKGLM(pretrained=tiny, num_samples=6),
        tasks=[*{*TASKS, *ROWS, *(f"blimp_{part}" for part in BLIMP)}],
        task_manager=manager,
        num_fewshot=2,
        limit=3,
        gen_kwargs={"max_gen_toks": 4},
        bootstrap_iters=0,
    )


def target(sample: dict) -> int:
    """The number of the right choice; some tasks of 0.4 log its text."""
    said = str(sample["target"])
    return int(said) if said.isdigit() else sample["doc_id"] % 2


def test_two_dozen_task_files_say_what_their_answers_say(results):
    found, answers = results["results"], log_likelihoods(results)
    assert len(found) == 24
    assert 0 < sum("acc,none" in values for values in found.values()) == 22
    for task, values in found.items():
        samples = results["samples"][task]
        if results["configs"][task]["output_type"] == "multiple_choice":
            right = [
                max(range(len(told)), key=[log_p for log_p, _ in told].__getitem__)
                == target(sample)
                for sample in samples
                for told in [answers[task, sample["doc_id"]]]
            ]
            assert len(right) == 3
            assert values["acc,none"] == pytest.approx(sum(right) / 3), task
    log_p = [answers["lambada_standard", n][0] for n in range(3)]
    assert found["lambada_standard"]["perplexity,none"] == pytest.approx(
        math.exp(-sum(score for score, _ in log_p) / 3)
    )
    assert found["lambada_standard"]["acc,none"] == sum(g for _, g in log_p) / 3
    pages = [answers["wikitext", n][0] for n in range(3)]
    assert found["wikitext"]["bits_per_byte,none"] == pytest.approx(
        -sum(pages) / (19 + 9 + 12) / math.log(2)
    )
    for sample in results["samples"]["gsm8k"]:
        [[written]] = sample["resps"]
        assert isinstance(written, str)
    assert found["gsm8k"]["exact_match,strict-match"] == 0, "no number is a word of it"
