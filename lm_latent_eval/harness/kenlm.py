"""N-gram models of KenLM as an lm-eval model: ``lm_eval --model kenlm``.

    log p(document) = sum over its lines of
        sum_i log p(w_i | <s> w_1 .. w_{i-1}) + log p(</s> | <s> w_1 .. w_n)

A document is sentences, one a line; words are what stands between white space, and a
line without words is no sentence. A word that the model does not know is its ``<unk>``,
and so are the marks ``<s>``, ``</s>`` and ``<unk>`` where a text has them as words.

A model without ``</s>``, such as that of an input method, has no distribution over
sentences: ends are left out, with a warning. One without ``<unk>`` gives unknown words
no probability, and KenLM gives them 10^-100: a warning says so.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401  (importing a backend must not half fill the registry)
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook

import lm_latent_eval
from lm_latent_eval.files import file_digest, one_line
from lm_latent_eval.harness.answers import GuardedHook, of_whole_text
from lm_latent_eval.registry import require

logger = logging.getLogger(__name__)

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
MARKS = (START, END, UNKNOWN)
NATS = math.log(10)
"""KenLM counts in powers of ten."""
MISSING = -100.0
"""KenLM's log10 p of unknown words where a file has no ``<unk>``."""


@dataclass(frozen=True)
class Step:
    """A word, or a sentence end, after those before it."""

    end: int
    """Where it ends in its text, in characters; an end of a line is one."""
    log_p: float
    """Nats."""
    known: bool
    """Whether the model has it; sentence ends are known."""
    before: Any
    """KenLM's state."""
    after: Any


class KenLM(LM):
    """Scores strings with an n-gram model.

    Args:
        pretrained: An ARPA file, or one of KenLM's binary files.
        batch_size: Taken and not used: sentences are scored one by one.
        max_batch_size: The same.
        device: The same; n-grams are looked up by the CPU.

    Raises:
        ModuleNotFoundError: If ``kenlm`` is not installed; names the extra.
        ValueError: If there is no such file, or KenLM cannot read it.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        device: Any = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        # --trust_remote_code is about data sets, but lm-eval tells models as well.
        unknown.pop("trust_remote_code", None)
        if unknown:
            raise ValueError(
                f"{next(iter(unknown))!r} is not an argument of kenlm; expected "
                "pretrained"
            )
        if pretrained is None:
            raise ValueError("kenlm needs --model_args pretrained=FILE.arpa")
        self.path = Path(str(pretrained))
        if not self.path.is_file():
            raise ValueError(f"pretrained={pretrained}: no such file")
        kenlm = require("kenlm", extra="ngram")
        options = kenlm.Config()
        options.show_progress = False
        try:
            self.model = kenlm.Model(str(self.path), options)
        except (OSError, RuntimeError) as err:
            raise ValueError(
                f"{self.path} is no model that KenLM reads ({one_line(err)}): expected "
                "an ARPA file, with nothing above its \\data\\, or what build_binary "
                "made of one"
            ) from err
        self._state = kenlm.State
        self._has_start, self._has_end = START in self.model, END in self.model
        if not self._has_end:
            logger.warning(
                "%s has no sentence ends: log p is that of the words, given where "
                "sentences end, and no distribution over texts",
                self.path,
            )
        # By its probability: to KenLM no word of this name is known, given or not.
        if self._unigram(UNKNOWN) == NATS * MISSING:
            logger.warning(
                "%s has no %s: log p of a word that it does not know is KenLM's, %g "
                "nats and a back-off weight, and not the model's",
                self.path,
                UNKNOWN,
                NATS * MISSING,
            )
        self.words = self.unknown = 0

    # -- lm-eval's interface ----------------------------------------------------------

    def loglikelihood_rolling(
        self, requests: list[Instance]
    ) -> list[float | tuple[float, bool]]:
        """Return log p of whole documents, every sentence with its end, in nats.

        In pairs where lm-eval asks in pairs (``of_whole_text``).
        """
        answers = []
        for request in requests:
            total = self._total(list(self._steps(request.args[-1], ended=True)))
            answer = of_whole_text(request.args, total)
            answers.append(answer)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return log p of continuations in nats, and whether they are greedy.

        A line end in a continuation ends a sentence; the last line may go on. A word
        across the border belongs to the continuation. Greedy is a continuation if no
        word, and no sentence end, is more probable than each of its words; unknown
        words never are.
        """
        answers = []
        for request in requests:
            context, continuation = request.args
            steps = [
                step
                for step in self._steps(context + continuation, ended=False)
                if step.end > len(context)
            ]
            answer = (
                self._total(steps),
                all(self._is_greedy(step) for step in steps),
            )
            answers.append(answer)
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return answers

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Refuse to generate.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("kenlm scores texts and generates none")

    def get_model_info(self) -> dict[str, Any]:
        """Return settings for the results' ``config``."""
        return {
            "latent_eval_version": lm_latent_eval.__version__,
            "checkpoint_digest": self.digest,
            "kenlm": {
                "order": self.model.order,
                "words_scored": self.words,
                "unknown_words_scored": self.unknown,
                "log_prob_of_unknown_word_without_context": self._unigram(UNKNOWN),
                "units": "nats; every line is a sentence, and its end is "
                + ("counted" if self._has_end else "not: the model has none"),
            },
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse a cache whose numbers another model made."""
        fingerprint = {
            "model": "kenlm",
            "lm_latent_eval": lm_latent_eval.__version__,
            "checkpoint": self.digest,
        }
        super().set_cache_hook(GuardedHook(cache_hook, fingerprint))

    @property
    def tokenizer_name(self) -> str:
        """Name of this model in keys of request caches."""
        return f"kenlm-{self.digest}"

    @cached_property
    def digest(self) -> str:
        """A short digest of the model's file."""
        return file_digest(self.path)[:16]

    # -- n-grams ----------------------------------------------------------------------

    def _steps(self, text: str, *, ended: bool) -> Iterator[Step]:
        """Yield the words and sentence ends of a text, left to right.

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

    def _total(self, steps: list[Step]) -> float:
        self.words += len(steps)
        self.unknown += sum(not step.known for step in steps)
        return math.fsum(step.log_p for step in steps)

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
                f"{self.path} does not list its words, so nobody can tell whether one "
                "is the most probable: give the ARPA file"
            )
        return sorted(words, key=self._unigram, reverse=True)

    def _unigram(self, word: str) -> float:
        """Return log p of a word after nothing, nats."""
        nothing = self._state()
        self.model.NullContextWrite(nothing)
        return float(NATS * self.model.BaseScore(nothing, word, self._state()))


def _words(path: Path) -> list[str]:
    """Read the vocabulary of an ARPA file, or of a binary file, which ends in it."""
    content = path.read_bytes()
    if content.startswith(b"mmap lm"):
        start = content.rfind(UNKNOWN.encode() + b"\0")
        listed = content[start:].split(b"\0")[:-1] if start >= 0 else []
    else:
        _, _, section = content.partition(b"\\1-grams:\n")
        unigrams = section.partition(b"\n\n")[0].splitlines()
        listed = [line.split()[1] for line in unigrams if line.strip()]
    return [word.decode("utf-8", "surrogateescape") for word in listed]
