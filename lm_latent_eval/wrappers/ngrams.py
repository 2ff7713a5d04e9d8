"""N-gram models of KenLM, whose texts have no latents.

    log p(document) = sum over its lines of
        sum_i log p(w_i | <s> w_1 .. w_{i-1}) + log p(</s> | <s> w_1 .. w_n)

A document is sentences, one a line; words are separated by white space, and a line
without words is no sentence. Unknown words become ``<unk>``, and so do the marks
``<s>``, ``</s>`` and ``<unk>`` as words of a text.

A model without ``</s>``, such as that of an input method, has no distribution over
sentences: ends are left out, with a warning. One without ``<unk>`` gives unknown words
no probability, and KenLM gives them 10^-100: a warning says so.

Unknown words are charged as one class, and not spelled: strings that hold one have
rates per word, which compare within one vocabulary, and none per byte.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import Any

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.files import file_digest, one_line
from lm_latent_eval.latent import Normalization
from lm_latent_eval.registry import require
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.files import digest

logger = logging.getLogger(__name__)

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
MARKS = (START, END, UNKNOWN)
NATS = math.log(10)
"""Nats of KenLM's unit, a power of ten."""
MISSING = -100.0
"""KenLM's log10 p of unknown words if a file has no ``<unk>``."""


@dataclass(frozen=True)
class Step:
    """A word, or a sentence end, after those before it."""

    end: int
    """End in its text, in characters; the end of a line is one."""
    log_p: float
    """Log p, nats."""
    known: bool
    """Whether the model knows it; sentence ends are known."""
    before: Any
    """State of KenLM before the word."""
    after: Any


class NGramScorer(TextScorer):
    """Scorer of strings by an n-gram model.

    Raises:
        ModuleNotFoundError: If ``kenlm`` is not installed; names the extra.
        ValueError: If there is no such file, or KenLM cannot read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ValueError(f"pretrained={path}: no such file")
        kenlm = require("kenlm", extra="ngram")
        options = kenlm.Config()
        options.show_progress = False
        try:
            self.model = kenlm.Model(str(path), options)
        except (OSError, RuntimeError) as err:
            raise ValueError(
                f"{path} is no model that KenLM reads ({one_line(err)}): expected "
                "an ARPA file, with nothing above its \\data\\, or what build_binary "
                "made of one"
            ) from err
        self._state = kenlm.State
        self._has_start, self._has_end = START in self.model, END in self.model
        if not self._has_end:
            logger.warning(
                "%s has no sentence ends: log p is that of the words, given where "
                "sentences end, and no distribution over texts",
                path,
            )
        # By its probability, since KenLM never lists this word.
        if self._unigram(UNKNOWN) == NATS * MISSING:
            logger.warning(
                "%s has no %s: log p of a word that it does not know is KenLM's, %g "
                "nats and a back-off weight, and not the model's",
                path,
                UNKNOWN,
                NATS * MISSING,
            )
        ends, lengths = Normalization.BELOW_ONE, Normalization.BY_LENGTH
        self.normalization = ends if self._has_end else lengths

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """All that numbers depend on besides the query, as JSON."""
        words = _words(self.path)
        checkpoint = file_digest(self.path)[:16]
        return {
            "model": "kenlm",
            "checkpoint": checkpoint,
            "estimator": "exact",
            "unk": "closed",
            "scored_as": "sentences",
            "vocabulary": digest("\n".join(sorted(words))) if words else checkpoint,
            "tokens_are": "words, and the ends of sentences"
            if self._has_end
            else "words",
            "mass": str(self.normalization),
        }

    @property
    def about(self) -> dict[str, Any]:
        """Description of model and numbers for results, as JSON."""
        description = {
            **self.fingerprint,
            "how": f"exact: n-grams of order {self.model.order}, by KenLM",
            "vocabulary": "The words of the file",
            "units": "nats; every line is a sentence, and its end is "
            + ("counted" if self._has_end else "not: the model has none"),
            "log_prob_of_unknown_word_without_context": self._unigram(UNKNOWN),
        }
        checkpoint = self.fingerprint["checkpoint"]
        return {"checkpoint_digest": checkpoint, "latent_eval": description}

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole documents, every sentence with its end, in nats."""
        for query in queries:
            steps = [*self._steps(query.text, ended=True)]
            yield self._answer(query, steps, _unusual_gaps(query.text))

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of continuations in nats, and whether they are greedy.

        A line end in a continuation ends a sentence; the last line may continue. A word
        across the border belongs to the continuation. A continuation is greedy if no
        word, and no sentence end, is more probable than each of its words; unknown
        words never are.
        """
        for query in queries:
            text = query.context + query.text
            every = self._steps(text, ended=False)
            steps = [step for step in every if step.end > len(query.context)]
            yield self._answer(query, steps, 0, all(map(self._is_greedy, steps)))

    def _answer(
        self, query: Query, steps: Sequence[Step], gaps: int, greedy: bool | None = None
    ) -> Answer:
        log_p = math.fsum(step.log_p for step in steps)
        return Answer(
            query.index,
            Estimate.exact(log_p, num_tokens=len(steps)),
            unspelled=sum(not step.known for step in steps),
            respaced=gaps,
            is_greedy=greedy,
        )

    # -- n-grams ----------------------------------------------------------------------

    def _steps(self, text: str, *, ended: bool) -> Iterator[Step]:
        """Words and sentence ends of a text, left to right.

        Args:
            text: Sentences, one a line.
            ended: Whether the last line is a whole sentence; the others are.
        """
        for line in re.finditer(r"[^\n]+", text):
            words = list(re.finditer(r"\S+", line.group()))
            state = self._start()
            for word in words:
                step = self._step(state, word.group(), line.start() + word.end())
                state = step.after
                yield step
            if words and self._has_end and (ended or line.end() < len(text)):
                yield self._step(state, END, line.end() + 1, is_end=True)

    def _start(self) -> Any:
        state = self._state()
        if self._has_start:
            self.model.BeginSentenceWrite(state)
        else:
            self.model.NullContextWrite(state)
        return state

    def _step(self, state: Any, word: str, end: int, *, is_end: bool = False) -> Step:
        known = is_end or (word not in MARKS and word in self.model)
        spoken, after = word if known else UNKNOWN, self._state()
        log_p = NATS * self.model.BaseScore(state, spoken, after)
        return Step(end, log_p, known, state, after)

    def _is_greedy(self, step: Step) -> bool:
        if not step.known:
            return False
        scratch = self._state()
        return not any(
            NATS * self.model.BaseScore(step.before, word, scratch) > step.log_p
            for word in self._vocabulary
        )

    @cached_property
    def _vocabulary(self) -> list[str]:
        """Every word and the sentence end, the most frequent first."""
        words = [word for word in _words(self.path) if word not in (START, UNKNOWN)]
        ends = (END in words) is self._has_end
        if not (words and ends and all(word in self.model for word in words)):
            raise ValueError(
                f"{self.path} does not list its words, so the most probable one is "
                "unknown: give the ARPA file"
            )
        return sorted(words, key=self._unigram, reverse=True)

    def _unigram(self, word: str) -> float:
        nothing = self._state()
        self.model.NullContextWrite(nothing)
        return float(NATS * self.model.BaseScore(nothing, word, self._state()))


def _unusual_gaps(text: str) -> int:
    r"""Number of gaps that words and line ends do not determine.

    Example:
        >>> _unusual_gaps("the fox\nsaw Ada\n"), _unusual_gaps(" the  fox")
        (0, 2)
    """
    first, *between, last = re.split(r"\S+", text) if text.strip() else ("", text)
    usual = first == "", last in ("", "\n"), *(gap in (" ", "\n") for gap in between)
    return sum(not each for each in usual)


def _words(path: Path) -> list[str]:
    """Vocabulary of an ARPA file, or of a binary file, which ends in it."""
    with path.open("rb") as file:
        if file.read(7) == b"mmap lm":
            content = file.read()
            start = content.rfind(UNKNOWN.encode() + b"\0")
            listed = content[start:].split(b"\0")[:-1] if start >= 0 else []
        else:
            file.seek(0)
            lines = dropwhile(lambda line: line.strip() != b"\\1-grams:", file)
            unigrams = takewhile(bytes.strip, islice(lines, 1, None))
            listed = [line.split()[1] for line in unigrams]
    return [word.decode("utf-8", "surrogateescape") for word in listed]
