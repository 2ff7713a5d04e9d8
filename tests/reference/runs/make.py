"""Make the runs in this folder, with the writers of inspect_ai and Every Eval Ever.

Made with inspect-ai 0.3.285 and every-eval-ever 0.3.0 by ``python make.py``, in an
environment that has both (the latter asks for Python 3.12). Questions and answers are
our own, and a die answers: ``good`` rightly 80 % of the time, ``poor`` 35 %.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import tiktoken
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate

PASSAGES = [
    ("Ada keeps a mill by the river.", ("Who?", "Ada"), ("Where?", "river")),
    ("Bo sold the red boat in May.", ("Who?", "Bo"), ("When?", "May")),
    ("Cleo grows pears and plums.", ("Who?", "Cleo"), ("What?", "plums")),
]
CLUSTERS = 10


class Bytes:
    """Counts tokens where no vocabulary can be fetched; nobody reads the counts."""

    def encode(self, text: str, **_: object) -> list[int]:
        """Return a token a byte."""
        return [*text.encode()]


def samples() -> list[Sample]:
    """Return two questions on each of ten passages."""
    found = []
    for n in range(CLUSTERS):
        text, *asked = PASSAGES[n % len(PASSAGES)]
        passage = f"{n}. {text}"
        found += [
            Sample(
                id=f"{n}-{m}",
                input=f"{passage} {question}",
                target=answer,
                metadata={"passage": passage},
            )
            for m, (question, answer) in enumerate(asked)
        ]
    return found


def main() -> None:
    """Write both runs in both formats."""
    tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _: Bytes()
    here = Path(__file__).parent
    for name, right in (("good", 0.8), ("poor", 0.35)):
        asked = samples()
        answers = {str(sample.input): str(sample.target) for sample in asked}
        dice = random.Random(name)

        def said(messages, *_):  # type: ignore[no-untyped-def]
            known = answers[messages[-1].text]  # noqa: B023
            rightly = dice.random() < right  # noqa: B023
            return ModelOutput.from_content("mockllm", known if rightly else "nobody")

        with tempfile.TemporaryDirectory() as folder:
            [log] = eval(
                Task(
                    name="mill",
                    dataset=MemoryDataset(asked),
                    solver=generate(),
                    scorer=match(),
                ),
                model=get_model("mockllm/model", custom_outputs=said),
                epochs=2,
                log_format="json",
                log_dir=folder,
                display="none",
                max_connections=1,
            )
            file = Path(folder, Path(log.location).name)
            log = read_eval_log(str(file))
            log.eval.model = f"hf/ours/{name}"
            log.eval.revision = None
            for sample in log.samples or ():
                sample.events, sample.events_data = [], None
            write_eval_log(log, str(file), format="json")
            command = [sys.executable, "-m", "every_eval_ever", "convert", "inspect"]
            command += ["--log_path", folder, "--output_dir", f"{folder}/out"]
            command += ["--source_organization_name", "lm_latent_eval"]
            subprocess.run([*command, "--evaluator_relationship", "other"], check=True)
            written = json.loads(file.read_text())
            (here / f"inspect_{name}.json").write_text(json.dumps(written) + "\n")
            for made in Path(folder, "out").rglob("*.json*"):
                end = "_samples.jsonl" if made.suffix == ".jsonl" else ".json"
                (here / f"eee_{name}{end}").write_text(made.read_text())


if __name__ == "__main__":
    main()
