"""Resumable execution of a distortion study, several steps at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from tqdm import tqdm

import lm_latent_eval
from lm_latent_eval.distortion.catalog import load_language
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.study.plan import (
    BASE,
    FINETUNED,
    SIZES,
    DistortionPlan,
    Layout,
    Learners,
    LearnerSpec,
)
from lm_latent_eval.distortion.study.steps import FIRST, StudySteps
from lm_latent_eval.files import file_digest
from lm_latent_eval.ledger.files import going_on
from lm_latent_eval.options import whole

KIND = "study of distortion"

Step = tuple[str, Callable[[], object]]
"""Description of a step, and its function."""


@dataclass(frozen=True)
class DistortionStudy:
    """A plan, its text, and the folder of its results.

    Attributes:
        plan: The numbers.
        output: The folder.
        text: Natural text; None is the demonstration corpus.
        jobs: Steps at a time, each in a process with its share of the processors.
        device: Where to compute; None is a GPU if there is one.
        quiet: Show no progress bar.
    """

    plan: DistortionPlan
    output: Path
    text: Path | None = None
    jobs: int = 1
    device: str | None = None
    quiet: bool = False

    def run(self) -> None:
        """Do what is not done yet.

        Raises:
            ValueError: If the folder is of another study or of one that is running, or
                a step cannot be done.
        """
        whole("jobs", self.jobs, 1)
        if self.text is not None and not self.text.is_file():
            raise ValueError(f"{self.text}: no such file")
        language = self.plan.latent.language
        if not isinstance(load_language(language), PCFG):  # now, not after hours
            raise ValueError(f"latent: language={language}: expected a grammar (pcfg)")
        settings = {
            "lm_latent_eval": lm_latent_eval.__version__,
            "text": self.text and file_digest(self.text)[:16],
            "plan": self.plan.settings(),
        }
        with going_on(self.output, settings, KIND, "what its steps have finished"):
            self._run([*self._stages()])

    def _stages(self) -> Iterator[list[Step]]:
        """Yield steps, of which those of one stage need only those of earlier ones."""
        steps = StudySteps(self.plan, Layout(self.output), self.text, self.device)
        learners = Learners(self.plan)
        yield [("text and tokenizer", steps.write_texts)]
        yield [
            ("language", steps.train_language),
            *(
                (f"pretraining {size}", partial(steps.pretrain, size))
                for size in reversed(SIZES)
                if any(each.size == size for each in learners.pretrained)
            ),
            ("latent learner", steps.train_latent),
        ]
        first = learners.of_finetuned
        base = [(BASE, t) for t in self.plan.temperatures]
        yield [("finetuned language", steps.finetune_language), *_draw(steps, base)]
        yield [
            *_train(steps, [each for each in learners.all if each != first]),
            *_draw(steps, [(FINETUNED, first.temperature)]),
        ]
        mapped = learners.mapped
        yield [
            *_train(steps, [first]),
            (f"{mapped.name}, perturbed", partial(steps.score_perturbed, mapped)),
        ]
        yield [
            *(
                (f"{each.name}, random", partial(steps.score_random, each))
                for each in (mapped, first)
            ),
            *(
                (f"{each.name}, text", partial(steps.score_text, each))
                for each in learners.all
            ),
        ]

    def _run(self, stages: list[list[Step]]) -> None:
        threads = max(1, min(torch.get_num_threads(), os.cpu_count() or 1) // self.jobs)
        others = {*multiprocessing.active_children()}
        with (
            tqdm(total=sum(map(len, stages)), unit=" steps", disable=self.quiet) as bar,
            ProcessPoolExecutor(
                self.jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(threads,),
            ) as pool,
        ):
            try:
                for stage in stages:
                    found = {pool.submit(step): name for name, step in stage}
                    bar.set_description(stage[0][0])
                    for future in as_completed(found):
                        future.result()
                        bar.set_description(found[future])
                        bar.update()
            except BrokenProcessPool as err:
                raise ChildProcessError(
                    "the process of a step was killed, as happens where memory is "
                    "short: repeat the command, which goes on, with fewer --jobs"
                ) from err
            except BaseException:  # an interruption, or an error, raised at once
                for process in {*multiprocessing.active_children()} - others:
                    process.terminate()
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _draw(steps: StudySteps, languages: Sequence[tuple[str, float]]) -> Iterator[Step]:
    for (name, t), split in product(languages, FIRST):
        yield f"{name} at T = {t:g}, {split}", partial(steps.draw, name, t, split)


def _train(steps: StudySteps, learners: Sequence[LearnerSpec]) -> Iterator[Step]:
    for learner in learners:
        yield learner.name, partial(steps.train, learner)


def _begin(threads: int) -> None:
    """Give a process its share of the processors, and one bar for all of them."""
    # An interruption is the parent's to tell; files have their names when whole.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    from transformers.utils import logging

    torch.set_num_threads(threads)
    logging.disable_progress_bar()


def _end_with_parent() -> None:
    """End this process if the study's main process was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # at once, on every system
