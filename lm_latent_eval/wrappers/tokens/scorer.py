"""Answers queries with the probability of strings, summed over their segmentations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Mass
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.options import parse_batch_size
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.network import Network
from lm_latent_eval.wrappers.tokens import passes
from lm_latent_eval.wrappers.tokens.estimators import Estimator, canonical, shifted
from lm_latent_eval.wrappers.tokens.generation import generate
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.passes import Scores, Tokens
from lm_latent_eval.wrappers.tokens.proposals import (
    LookAhead,
    NextToken,
    Proposal,
    Unigram,
    frequencies,
)
from lm_latent_eval.wrappers.tokens.search import search
from lm_latent_eval.wrappers.tokens.strings import Continuation, Piece, Strings
from lm_latent_eval.wrappers.tokens.vocabulary import Vocabulary
from lm_latent_eval.wrappers.tokens.walk import Stretch, Walk

QUERIES = 256
"""Queries that are answered before the next ones are looked at."""
ROWS = 256
"""Sequences that the network goes on with together, where no batch size is given."""
UNITS = {
    "none": "nats; texts end at a token border, and their ends are not counted",
    "prefix": "nats; of all texts that begin so",
    "eos": "nats; ends counted",
}


class TokensScorer:
    """Scores strings with a causal LM under one choice of options."""

    def __init__(
        self,
        network: Network,
        vocabulary: Vocabulary,
        options: TokensOptions,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        quiet: bool = False,
    ) -> None:
        """Take a network.

        Args:
            network: The causal LM.
            vocabulary: What its tokens write.
            options: How to sum.
            batch_size: Sequences that the network reads together, but at least the
                segmentations of one text; None and ``auto`` are as many as memory
                allows.
            max_batch_size: The most that they take.
            quiet: Show no progress.

        Raises:
            ValueError: If an option does not suit the network.
        """
        self._network, self._options, self._quiet = network, options, quiet
        self._strings = Strings(network, vocabulary, options)
        self._batch_size = parse_batch_size(batch_size)
        self._rows = self._batch_size or parse_batch_size(max_batch_size) or ROWS
        plain = options.estimator == "canonical"
        self._estimator = None if plain else Estimator.of(options)

    @property
    def mass(self) -> Mass:
        """What the probabilities of all texts total: with their ends, at most one."""
        return Mass.LESS if self._options.end == "eos" else Mass.BY_LENGTH

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that a number depends on but the query, as JSON."""
        network = self._network
        return {
            "model": "tokens",
            "checkpoint": network.digest,
            "dtype": str(network.model.dtype),
            "computed_in": str(network.computed_in),
            **asdict(self._options),
            "window": [network.max_length, network.positions],
            "prefix_token": network.prefix_token,
            "adds_special": network.adds_special,
            "vocabulary": network.digest,
            "tokens_are": "canonical tokens",
            "mass": str(self.mass),
            "scored_as": "documents",
        }

    @property
    def about(self) -> dict[str, Any]:
        """What results say of model and numbers, as JSON."""
        return {
            **self._network.about,
            "latent_eval": {
                **asdict(self._options),
                "mass": str(self.mass),
                "scored_as": "documents",
                "units": UNITS[self._options.end],
            },
        }

    # -- whole texts ------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole texts, as they are found.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        return (answer for answer, _ in self.explore(queries))

    def explore(self, queries: Sequence[Query]) -> Iterator[tuple[Answer, list[Walk]]]:
        """Yield answers of whole texts, with the segmentations of every window.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        with self._bar(len(queries), "texts") as bar:
            for some in _some(queries):
                cut = []
                for query in some:
                    with naming(query):
                        cut.append(self._strings.whole(query.text))
                names = [
                    f"{query.name}/window {n}" if n else query.name
                    for query, pieces in zip(some, cut, strict=True)
                    for n in range(len(pieces))
                ]
                pieces = [piece for pieces in cut for piece in pieces]
                scores = self._scores(pieces)
                walks = iter(self._walk(pieces, names, scores))
                for query, of_query in zip(some, cut, strict=True):
                    found = [next(walks) for _ in of_query if self._estimator]
                    yield self._whole(query, of_query, found, scores), found
                    bar.update()

    def _whole(
        self,
        query: Query,
        pieces: Sequence[Piece],
        walks: Sequence[Walk],
        scores: Mapping[tuple[Tokens, Tokens], Scores],
    ) -> Answer:
        """Put the windows of a text together."""
        plain = [scores[piece.scored] for piece in pieces]
        if self._estimator is None:
            restores = self._strings.restores(query.text)
            parts = [
                canonical(one.total, len(one.log_p), restores=restores) for one in plain
            ] or [Estimate.exact(0.0, num_tokens=0, estimator="canonical")]
        else:
            # Special tokens that stand before a text are not summed over.
            parts = [
                shifted(
                    self._estimator.estimate(walk, len(one.log_p)),
                    math.fsum(one.log_p[: piece.leading]),
                )
                for piece, walk, one in zip(pieces, walks, plain, strict=True)
            ]
        return Answer(
            query.index,
            Estimate.product(parts),
            self._stream(query),
            sentences=len(parts),
            evaluations=sum(part.num_samples for part in parts),
            canonical=math.fsum(one.total for one in plain),
        )

    # -- continuations ----------------------------------------------------------------

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of texts after their contexts, as they are found.

        They are greedy where greedy decoding writes their canonical segmentation.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        with self._bar(len(queries), "continuations") as bar:
            for some in _some(queries):
                asked = []
                for query in some:
                    with naming(query):
                        asked.append(self._strings.continuation(query))
                for query, answer in zip(some, self._after(some, asked), strict=True):
                    estimate, one = answer
                    yield Answer(
                        query.index,
                        estimate,
                        self._stream(query),
                        is_greedy=one is not None and all(one.greedy),
                        evaluations=estimate.num_samples,
                    )
                    bar.update()

    def _after(
        self, queries: Sequence[Query], asked: Sequence[Continuation]
    ) -> Iterator[tuple[Estimate, Scores | None]]:
        """Yield estimates, and what ``--model hf`` would make of the same tokens."""
        scores = self._scores([piece for one in asked for piece in one.pieces])
        walks: dict[Hashable, Walk] = {}
        if self._estimator is not None:
            # Options of one question share their context, and its random numbers.
            sums = {
                (query.name, piece): piece
                for query, one in zip(queries, asked, strict=True)
                for piece in (one.context, one.whole)
                if piece is not None
            }
            names = [name for name, _ in sums]
            found = self._walk([*sums.values()], names, scores)
            walks = dict(zip(sums, found, strict=True))
        for query, one in zip(queries, asked, strict=True):
            plain, size = scores.get(one.plain.scored), len(one.plain.tokens)
            if not query.text and not size:
                yield Estimate.exact(0.0, num_tokens=0), Scores((), ())
            elif self._estimator is None and plain is not None:
                estimate = canonical(plain.total, size)
                given = bool(query.context)
                yield replace(estimate, bound=Bound.NONE) if given else estimate, plain
            elif self._estimator is None or one.whole is None:
                raise ValueError(
                    f"{query.name}: no canonical token is the continuation's own, the "
                    "last one of its context writes it, too; leave out "
                    "estimator=canonical"
                )
            elif one.context is None:
                whole = walks[query.name, one.whole]
                yield self._estimator.estimate(whole, size), plain
            else:
                pair = walks[query.name, one.whole], walks[query.name, one.context]
                yield self._estimator.difference(*pair, size), plain

    # -- generation -------------------------------------------------------------------

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every query's context, by its own tokens."""
        with self._bar(len(queries), "generations") as bar:
            for query, options in queries:
                given = self._strings.given(query.context, options.max_tokens)
                key = stream_key(self._options.seed, f"utter\0{query.name}")
                yield query.index, generate(self._network, given, options, key)
                bar.update()

    # -- shared -----------------------------------------------------------------------

    def _scores(self, pieces: Sequence[Piece]) -> dict[tuple[Tokens, Tokens], Scores]:
        """Score canonical segmentations, equal ones once."""
        wanted = list(dict.fromkeys(p.scored for p in pieces if p.scored[1]))
        found = passes.score(self._network, wanted, self._batch_size)
        return dict(zip(wanted, found, strict=True))

    def _walk(
        self,
        pieces: Sequence[Piece],
        names: Sequence[str],
        scores: Mapping[tuple[Tokens, Tokens], Scores],
    ) -> list[Walk]:
        """Search and draw segmentations.

        Args:
            pieces: Strings.
            names: What the random numbers of each follow from.
            scores: Of their canonical segmentations.
        """
        if self._estimator is None:
            return []
        if self._options.estimator == "exact":
            self._check_size(pieces, names)
        stretches = []
        for piece in pieces:
            one = scores[piece.scored].log_p[piece.leading :]
            room = self._network.positions + 1 - len(piece.given)
            stretches.append(
                Stretch(piece.given, piece.summed, piece.tokens, one, room)
            )
        # What is given the same is read once, together; nothing is padded.
        order = sorted(
            range(len(pieces)), key=lambda n: (len(pieces[n].given), pieces[n].given, n)
        )
        walks: dict[int, Walk] = {}
        while order:
            batch = self._together(order, stretches)
            found = search(
                self._network,
                [stretches[n] for n in batch],
                self._estimator.plan,
                self._proposal,
                [stream_key(self._options.seed, f"\0{names[n]}") for n in batch],
            )
            walks.update(zip(batch, found, strict=True))
            order = order[len(batch) :]
        return [walks[n] for n in range(len(pieces))]

    def _check_size(self, pieces: Sequence[Piece], names: Sequence[str]) -> None:
        limit = self._options.max_segmentations
        for piece, name in zip(pieces, names, strict=True):
            if (most := piece.summed.num_prefixes) > limit:
                raise ValueError(
                    f"{name}: estimator=exact would read 10^{math.log10(most):.1f} "
                    f"beginnings of segmentations; max_segmentations={limit}. Use "
                    "estimator=mixed"
                )

    def _together(self, order: list[int], stretches: list[Stretch]) -> list[int]:
        """Return the next texts that are read together."""
        texts = max(1, self._rows // max(1, self._options.num_samples))
        size = len(stretches[order[0]].given)
        return [n for n in order[:texts] if len(stretches[n].given) == size]

    def _proposal(self, stretch: Stretch) -> Proposal:
        temperature = self._options.temperature
        if self._options.proposal == "lm":
            return NextToken(temperature)
        if self._options.proposal == "ahead":
            return LookAhead(stretch.lattice, stretch.log_rest, temperature)
        return Unigram(stretch.lattice, self._frequencies, temperature)

    @cached_property
    def _frequencies(self) -> NDArray[np.float64]:
        size = self._network.model.config.get_text_config().vocab_size
        return frequencies(self._network.tokenizer, size)

    def _stream(self, query: Query) -> str:
        return f"{self._options.seed}/{query.name}"

    def _bar(self, total: int, unit: str) -> Any:
        title = f"segmentations ({self._options.estimator})"
        return tqdm(total=total, desc=title, unit=f" {unit}", disable=self._quiet)


def _some(queries: Sequence[Query]) -> Iterator[Sequence[Query]]:
    for first in range(0, len(queries), QUERIES):
        yield queries[first : first + QUERIES]


__all__ = ["TokensScorer"]
