"""Resumable steps of a study: natural text, sampling, training, scoring.

A study needs two texts: one that the language is trained on, and another that a model
has read before, where a figure starts from a pretrained one. No text is in both, or in
two of their files, or twice in one: what is held out has not been read.

A step needs nothing but the plan and the folders of the steps before it, so that steps
of one stage can run beside each other, in processes of their own.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from lm_latent_eval.demo import SPLITS, other_texts
from lm_latent_eval.demo import texts as texts_of
from lm_latent_eval.distortion import sources
from lm_latent_eval.distortion.catalog import language_of, load_language, load_learner
from lm_latent_eval.distortion.languages.corpus import Corpus, TokenIds
from lm_latent_eval.distortion.languages.language import (
    Language,
    train_bpe,
    word_tokenizer,
)
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.distortion.learners import rnng
from lm_latent_eval.distortion.learners.architectures import (
    Configuration,
    PretrainedStart,
    Size,
    Start,
    named_size,
)
from lm_latent_eval.distortion.learners.data import (
    CorpusData,
    FreshData,
    TextData,
    TrainingData,
)
from lm_latent_eval.distortion.learners.options import TrainingOptions
from lm_latent_eval.distortion.learners.scores import score_sequences
from lm_latent_eval.distortion.learners.training import train_learner
from lm_latent_eval.distortion.study.plan import (
    BASE,
    FINETUNED,
    LANGUAGE_TEXT,
    OTHER_TEXT,
    DistortionPlan,
    Layout,
    LearnerSpec,
    pretrained,
)
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.scoring.options import parse_device
from lm_latent_eval.text.corpora import stream_texts
from lm_latent_eval.training.options import Options, RNNGSize
from lm_latent_eval.uniforms import stream_key

HELD_OUT = 20
"""One text in so many is held out: half of them for validation."""
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")


def write_texts(texts: Iterator[str], directory: Path) -> None:
    """Divide texts into ``train.txt``, ``dev.txt`` and ``test.txt``, one a line.

    Raises:
        ValueError: If there are too few to hold some out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"{name}.txt" for name in ("train", "dev", "test")}
    counts = dict.fromkeys(paths, 0)
    held_out = {HELD_OUT // 2 - 1: "dev", HELD_OUT - 1: "test"}
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8"))
            for name, path in paths.items()
        }
        for number, text in enumerate(texts):
            name = held_out.get(number % HELD_OUT, "train")
            files[name].write(f"{in_one_line(text)}\n")
            counts[name] += 1
    if not all(counts.values()):
        raise ValueError(
            f"too few texts for {directory}: {counts}; expected at least {HELD_OUT}"
        )


def natural_texts(path: Path | None, part: str) -> Iterator[str]:
    """Read one of two texts, each of their texts once.

    Args:
        path: A file: of its distinct texts, every second one is what languages learn,
            and the others are what a model had read before. None is the demonstration
            corpora of two worlds.
        part: ``language`` or ``other``.
    """
    number = [LANGUAGE_TEXT, OTHER_TEXT].index(part)
    if path is not None:
        return islice(_distinct(map(in_one_line, stream_texts(path))), number, None, 2)
    first = [text for split in SPLITS for text in texts_of(split)]
    if part == LANGUAGE_TEXT:
        return _distinct(_sentences(first))
    known = {*_sentences(first)}
    return _distinct(s for s in _sentences(other_texts()) if s not in known)


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    return (in_one_line(s) for text in texts for s in _SENTENCE.split(text))


def in_one_line(text: str) -> str:
    """Return a text as it is written, equal to those that differ in white space."""
    return " ".join(text.split())


def _distinct(texts: Iterable[str]) -> Iterator[str]:
    """Leave out what was there before; 16 bytes of each text are kept in memory."""
    seen = set()
    for text in texts:
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield text


FIRST = {"train": 0, "dev": 1_000_000_000, "test": 2_000_000_000}
"""Numbers of a corpus' sequences: fresh ones follow those of training."""
_SAMPLED_AT_ONCE = 512
_LATENT_LENGTH = 128


@dataclass(frozen=True)
class StudySteps:
    """The steps of a plan.

    Attributes:
        plan: The numbers.
        layout: The folders.
        text: Natural text to learn from; None is the demonstration corpus.
        device: Where to compute; None is a GPU if there is one.
    """

    plan: DistortionPlan
    layout: Layout
    text: Path | None = None
    device: str | None = None

    def write_texts(self) -> None:
        """Divide the natural text, and train the byte-pair encoding on its parts."""
        for part in (LANGUAGE_TEXT, OTHER_TEXT):
            write_texts(natural_texts(self.text, part), self.layout.text(part))
        if not self.layout.tokenizer.exists():
            paths = (
                self.layout.text(part) / "train.txt"
                for part in (LANGUAGE_TEXT, OTHER_TEXT)
            )
            lines = chain.from_iterable(map(stream_texts, paths))
            bpe = train_bpe(lines, self.plan.vocab_size)
            partial = self.layout.tokenizer.with_suffix(".partial")
            bpe.save_pretrained(partial)
            partial.rename(self.layout.tokenizer)

    def train_language(self) -> None:
        """Train the language of most figures on natural text."""
        self._train_on_text(BASE, LANGUAGE_TEXT, self._start("medium"), "medium")

    def pretrain(self, size: str) -> None:
        """Train a model of a size on other text."""
        self._train_on_text(pretrained(size), OTHER_TEXT, self._start(size), size)

    def finetune_language(self) -> None:
        """Train the pretrained model on the text of the language (figure 7)."""
        start = PretrainedStart(self.layout.language(pretrained("medium")))
        self._train_on_text(FINETUNED, LANGUAGE_TEXT, start, "medium")

    def draw(self, language: str, temperature: float, split: str) -> None:
        """Draw a corpus of a language at a temperature."""
        Corpus.draw(
            load_language(
                self.layout.language(language),
                temperature=temperature,
                batch_size=_SAMPLED_AT_ONCE,
                device=self.device,
            ),
            self.layout.corpus(language, temperature, split),
            getattr(self.plan, f"num_{split}"),
            # Languages draw independently of each other.
            seed=stream_key(self.plan.seed, f"{language}/{temperature:g}") % 2**32,
            first=FIRST[split],
            max_length=self.plan.max_length,
            quiet=True,
        )

    def train(self, learner: LearnerSpec) -> None:
        """Train a model on a language, and score the test sequences."""
        corpora = {split: self._corpus(learner, split) for split in FIRST}
        data: TrainingData = CorpusData(corpora["train"])
        if learner.online:
            data = FreshData(
                corpora["train"],
                self._language_of(learner, corpora["train"]),
                self.plan.num_fresh,
            )
        start = self._start(learner.size)
        if learner.pretrained:
            start = PretrainedStart(self.layout.language(pretrained(learner.size)))
        train_learner(
            self.layout.learner(learner),
            start,
            data,
            CorpusData(corpora["dev"]),
            self._options(
                learner.size,
                self.plan.iterations if learner.online else self.plan.epochs,
            ),
            test=corpora["test"],
            track=self.plan.num_tracked,
            device=self.device,
            quiet=True,
        )
        self._score(learner, "test", sources.Unchanged(corpora["test"]))

    def score_text(self, learner: LearnerSpec) -> None:
        """Score natural text that no language has read."""
        corpus, language = self._test_language(learner)
        lines = stream_texts(self.layout.text(LANGUAGE_TEXT) / "test.txt")
        texts = [*islice(lines, self.plan.num_test)]
        self._score(learner, "text", sources.Texts(corpus, language, texts))

    def score_perturbed(self, learner: LearnerSpec) -> None:
        """Score test sequences after every number of perturbations."""
        corpus, language = self._test_language(learner)
        source = sources.Perturbed(
            corpus,
            language,
            self.plan.num_edits,
            self.plan.seed,
            num_sequences=self.plan.num_perturbed,
        )
        self._score(learner, "perturbed", source)

    def score_random(self, learner: LearnerSpec) -> None:
        """Score random sequences."""
        corpus, language = self._test_language(learner)
        how = {"seed": self.plan.seed, "num_sequences": self.plan.num_random}
        source = sources.Random(corpus, language, **how)
        self._score(learner, "random", source)

    def train_latent(self) -> None:
        """Train an RNNG on the derivations of a grammar, and score short sentences.

        With every tree summed, and with each number of samples.
        """
        latent = self.plan.latent
        grammar = load_language(latent.language)
        numbers = {
            "train": latent.num_train,
            "dev": max(1, latent.num_train // 10),
            # Enough for as many short ones.
            "test": 4 * latent.num_test,
        }
        corpora = {
            split: Corpus.draw(
                grammar,
                self.layout.latent(split),
                number,
                seed=self.plan.seed,
                first=FIRST[split],
                max_length=_LATENT_LENGTH,
                quiet=True,
            )
            for split, number in numbers.items()
        }
        checkpoint = self.layout.latent("rnng")
        if not checkpoint.exists():
            partial = checkpoint.with_suffix(".partial")
            with redirect_stderr(io.StringIO()):  # a study has a bar of its own
                rnng.train_grammar(
                    corpora["train"],
                    corpora["dev"],
                    partial,
                    size=RNNGSize(
                        hidden_size=latent.hidden_size,
                        proposal_size=latent.hidden_size,
                    ),
                    options=Options(epochs=latent.epochs, seed=self.plan.seed),
                )
            partial.rename(checkpoint)
        test = corpora["test"]
        short = sources.Short(test, latent.max_words + 1, num_sequences=latent.num_test)
        device = parse_device(self.device)
        every = LatentLanguage(load_checkpoint(checkpoint, device=device))
        ids = (every.vocab_size, every.begin_id, every.end_id)
        words = word_tokenizer(every.words)
        TokenIds.of(test).check(TokenIds(str(checkpoint), *ids, words))
        score_sequences(every, short, self.layout.latent_scores("exact"), quiet=True)
        for proposal, number in latent.estimates:
            some = load_learner(
                checkpoint,
                test,
                proposal=proposal,
                estimator="is",  # of which more draws continue fewer
                num_samples=number,
                seed=self.plan.seed,
                device=self.device,
            )
            folder = self.layout.latent_scores(proposal, number)
            score_sequences(some, short, folder, quiet=True)

    def _train_on_text(self, name: str, part: str, start: Start, size: str) -> None:
        vocabulary = TokenIds.read(self.layout.tokenizer)
        folder = self.layout.text(part)
        data, dev = (
            TextData(folder / f"{split}.txt", vocabulary, self.plan.max_length, True)
            for split in ("train", "dev")
        )
        train_learner(
            self.layout.language(name),
            start,
            data,
            dev,
            self._options(size, self.plan.language_epochs),
            device=self.device,
            quiet=True,
        )

    def _start(self, size: str) -> Start:
        return Configuration(self._size(size).config)

    def _options(self, size: str, epochs: int) -> TrainingOptions:
        return TrainingOptions(
            epochs=epochs,
            learning_rate=self._size(size).learning_rate,
            batch_size=self.plan.batch_size,
            micro_batch=self.plan.micro_batch,
            seed=self.plan.seed,
            bf16=self.plan.bf16,
        )

    def _size(self, size: str) -> Size:
        """Return an architecture that has a name, or the plan's own."""
        given = dict(self.plan.sizes[size])
        if "architecture" in given:
            return named_size(given["architecture"])
        return Size(learning_rate=given.pop("learning_rate"), config=given)

    def _corpus(self, learner: LearnerSpec, split: str) -> Corpus:
        return Corpus.open(
            self.layout.corpus(learner.language, learner.temperature, split)
        )

    def _test_language(self, learner: LearnerSpec) -> tuple[Corpus, Language]:
        corpus = self._corpus(learner, "test")
        return corpus, self._language_of(learner, corpus)

    def _language_of(self, learner: LearnerSpec, corpus: Corpus) -> Language:
        path = self.layout.language(learner.language)
        return language_of(
            corpus, path, batch_size=_SAMPLED_AT_ONCE, device=self.device
        )

    def _score(self, learner: LearnerSpec, kind: str, source: sources.Source) -> None:
        model = load_learner(
            self.layout.learner(learner),
            source.corpus,
            device=self.device,
            batch_size=self.plan.batch_size,
        )
        folder = self.layout.scores(learner, kind)
        score_sequences(model, source, folder, quiet=True)
