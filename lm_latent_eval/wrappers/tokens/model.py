"""A causal LM as a distribution over strings: its ``TextModel`` and ``TextScorer``."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from lm_latent_eval.devices import MemoryLimit
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Description, Normalization
from lm_latent_eval.networks.causal import Tokens, TokenScores, check_causal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.inside.latents import BestLatents, ranked
from lm_latent_eval.scoring.inside.regions import Regions, RegionScore
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.base import NetworkModel, NetworkScorer, warn_of_cut
from lm_latent_eval.wrappers.tokens.edges import Stretch
from lm_latent_eval.wrappers.tokens.encoding import Continuation, Encoding, Piece
from lm_latent_eval.wrappers.tokens.estimators import (
    WalkEstimator,
    canonical,
    shifted,
)
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.regions import (
    beginnings,
    border_tokens,
    borders_after,
    canonical_estimates,
    summed_estimates,
    with_border,
)
from lm_latent_eval.wrappers.tokens.search import (
    SegmentationSearch,
    SegmentationWalk,
    WalkPlan,
)
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary

ROWS = 256
"""Default number of sequences that the network extends together."""
logger = logging.getLogger(__name__)
Scores = Mapping[tuple[Tokens, Tokens], TokenScores]
"""Given tokens, and tokens after them -> log-probabilities of the latter."""
QUERIES = 256
"""Number of queries answered together."""
UNITS = {
    "none": "nats; texts end at a token border, and their ends are not counted",
    "prefix": "nats; of all texts that begin so",
    "eos": "nats; ends counted",
}


class TokensScorer(NetworkScorer):
    """Scores strings with a causal LM under one choice of options."""

    name = "tokens"
    network: Network

    def __init__(
        self,
        network: Network,
        vocabulary: ByteVocabulary,
        options: TokensOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> None:
        """Take a network.

        Args:
            network: The causal LM.
            vocabulary: Bytes of its tokens.
            options: Settings.
            batch_size: Number of sequences that the network reads together, at least
                the segmentations of one text; None is as many as memory allows.
            most: Largest batch size.
            quiet: Show no progress.

        Raises:
            ValueError: If an option does not suit the network.
        """
        self.network, self._options, self.quiet = network, options, quiet
        self._encoding = Encoding(network, vocabulary, options)
        if self._encoding.starts_twice and not quiet:
            logger.warning(
                "the tokenizer puts %s before a text, which follows one anyhow: as hf "
                "does, whole texts follow two, and log p of the second one is added. "
                "With add_bos_token=False they follow one",
                self._encoding.begin,
            )
        self._batch_size, self._rows = batch_size, batch_size or most or ROWS
        self._reader, self._memory_of_walks = network.reader(wide=False), MemoryLimit()
        plain = options.estimator == "canonical"
        self._estimator = None if plain else WalkEstimator.of(options)
        self.normalization = (
            Normalization.BELOW_ONE if options.end == "eos" else Normalization.BY_LENGTH
        )
        chosen = {**asdict(options), "scored_as": "documents"}
        self.settings = {
            "dtype": str(network.model.dtype),
            "computed_in": str(network.computed_in),
            **chosen,
            "window": [network.max_length, network.positions],
            "prefix_token": network.prefix_token,
            "adds_special": network.adds_special,
            "vocabulary": network.digest,
            "tokens_are": "canonical tokens",
        }
        self.described = {**chosen, "units": UNITS[options.end]}

    # -- whole texts ------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole texts.

        Raises:
            MissedTextsError: At the end, if a text has probability zero.
            ValueError: If a text cannot be scored; the error names the query.
        """
        missed = Missed(queries)
        with self._bar(len(queries), "texts") as bar:
            for block in _blocks(queries):
                cut = []
                for query in block:
                    with naming(query):
                        cut.append(self._encoding.cut(query.text))
                names = [
                    f"{query.name}/window {n}" if n else query.name
                    for query, pieces in zip(block, cut, strict=True)
                    for n in range(len(pieces))
                ]
                pieces = [piece for pieces in cut for piece in pieces]
                scores = self._scores(pieces)
                walks = iter(self._walks(pieces, names, scores))
                for query, of_query in zip(block, cut, strict=True):
                    own = [next(walks) for _ in of_query if self._estimator]
                    with missed.aside(query):
                        yield self._whole(query, of_query, own, scores)
                    bar.update()
        missed.tell()

    def _whole(
        self,
        query: Query,
        pieces: Sequence[Piece],
        walks: Sequence[SegmentationWalk],
        scores: Scores,
    ) -> Answer:
        plain = [scores[piece.scored] for piece in pieces]
        restores = all(piece.restores for piece in pieces)
        if (estimator := self._estimator) is None:
            parts = [
                canonical(one.total, len(one.log_p), restores=restores) for one in plain
            ] or [Estimate.exact(0.0, num_tokens=0, estimator="canonical")]
        else:
            # Special tokens that stand before a text are not summed over.
            parts = [
                shifted(
                    estimator.estimate(walk, len(one.log_p)),
                    math.fsum(one.log_p[: piece.leading]),
                )
                for piece, walk, one in zip(pieces, walks, plain, strict=True)
            ]
        return Answer(
            query.index,
            Estimate.product(parts),
            self._stream(query),
            respaced=int(not restores),
            sentences=len(parts),
            canonical=math.fsum(one.total for one in plain),
        )

    # -- continuations ----------------------------------------------------------------

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of texts after their contexts, as ``score_texts`` does.

        ``is_greedy`` says whether greedy decoding writes the canonical segmentation.
        """
        missed, lost = Missed(queries), list[int]()
        with self._bar(len(queries), "continuations") as bar:
            for block in _blocks(queries):
                continuations = []
                for query in block:
                    with naming(query):
                        continuations.append(self._encoding.read(query))
                lost += (each.lost for each in continuations)
                scores = self._scores(
                    [p for each in continuations for p in each.pieces]
                )
                walks = self._sums(block, continuations, scores)
                for query, each in zip(block, continuations, strict=True):
                    plain = scores.get(each.plain.scored)
                    with missed.aside(query):
                        estimate = self._continued(query, each, plain, walks)
                        yield Answer(
                            query.index,
                            estimate,
                            self._stream(query),
                            is_greedy=all(plain.greedy) if plain else not query.text,
                        )
                    bar.update()
        warn_of_cut(lost, self.network.max_length)
        missed.tell()

    def _sums(
        self,
        queries: Sequence[Query],
        continuations: Sequence[Continuation],
        scores: Scores,
    ) -> dict[Hashable, SegmentationWalk]:
        """Walk through texts and through their contexts, by name and piece.

        Options of one question share their context, and its random numbers.
        """
        sums = {
            (query.name, piece): piece
            for query, each in zip(queries, continuations, strict=True)
            for piece in (each.context, each.whole)
            if piece is not None and self._estimator is not None
        }
        walks = self._walks([*sums.values()], [name for name, _ in sums], scores)
        return dict(zip(sums, walks, strict=True))

    def _continued(
        self,
        query: Query,
        read: Continuation,
        plain: TokenScores | None,
        walks: Mapping[Hashable, SegmentationWalk],
    ) -> Estimate:
        """Estimate log p of a text after its context.

        ``plain`` are the scores of ``--model hf``; None for a text without tokens.
        """
        size = len(read.plain.tokens)
        if not query.text and not size:
            return Estimate.exact(0.0, num_tokens=0)
        estimator = self._estimator
        if estimator is None and plain is not None:
            estimate = canonical(plain.total, size)
            return replace(estimate, bound=Bound.NONE) if query.context else estimate
        if estimator is None or read.whole is None:
            raise ValueError(
                "no canonical token is the continuation's own, the last one of its "
                "context writes it, too; leave out estimator=canonical"
            )
        whole = walks[query.name, read.whole]
        estimate = (
            estimator.estimate(whole, size)
            if read.context is None
            else estimator.difference(whole, walks[query.name, read.context], size)
        )
        if read.given_tokens:  # one way to write the context, and no ratio to all
            return replace(estimate, bound=Bound.NONE)
        return estimate

    # -- regions ----------------------------------------------------------------------

    unknown_words = "nothing"  # tokens write every string

    def score_regions(
        self, texts: Sequence[Regions]
    ) -> Iterator[tuple[int, list[RegionScore]]]:
        """Yield log p of each region of texts: see ``TextScorer``.

        Raises:
            MissedTextsError: At the end, if a text has probability zero.
            ValueError: If a text cannot be scored.
        """
        missed = Missed([regions.query for regions in texts])
        borders = border_tokens(self.network, self._encoding.vocabulary)
        with self._bar(len(texts), "texts") as bar:
            for regions in texts:
                with missed.aside(regions.query):
                    yield regions.query.index, self._regions(borders, regions)
                bar.update()
        missed.tell()

    def _regions(self, borders: Tokens, regions: Regions) -> list[RegionScore]:
        plain = beginnings(self._encoding, borders, regions)
        read = self._scores(plain)
        after = borders_after(self.network, plain)
        pairs = [
            with_border(piece, read[piece.scored], border)
            for piece, border in zip(plain, after, strict=True)
        ]
        pieces, scores = zip(*pairs, strict=True)
        if self._estimator is None:
            estimates = canonical_estimates(scores)
        else:
            by_piece = {p.scored: one for p, one in zip(pieces, scores, strict=True)}
            names = [regions.query.name] * len(pieces)
            # Their searches are one until a text ends, and share what is read.
            walks = self._walks(pieces, names, by_piece, at_once=len(pieces))
            estimates = summed_estimates(self._estimator, walks, after)
        number = len(regions.ends)
        return [
            RegionScore(n if n < number else None, estimate)
            for n, estimate in enumerate(estimates)
        ]

    # -- segmentations ----------------------------------------------------------------

    def best_latents(self, queries: Sequence[Query], top: int) -> Iterator[BestLatents]:
        """Yield the most probable segmentations of each window of texts.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        for query in queries:
            with naming(query):
                pieces = self._encoding.cut(query.text)
                scores = self._scores(pieces)
            for piece in pieces:
                stretch = self._stretch(piece, scores)
                # A token that overruns a prefix is none of the string's.
                lattice = replace(stretch.lattice, overruns=False)
                search = SegmentationSearch(
                    self.network,
                    [replace(stretch, lattice=lattice)],
                    WalkPlan((self._options.num_samples,)),
                    [0],
                    block=1,
                )
                [walk] = search.run()
                paths = [stretch.canonical, *search.paths()]
                log_p = torch.tensor([stretch.log_p, *walk.log_w], dtype=torch.float64)
                is_exact = not walk.pruned and lattice.longest <= stretch.room
                describe = partial(_segmented, self._encoding.vocabulary, piece, paths)
                yield BestLatents(
                    query.index,
                    [lattice.target.decode(errors="replace")],
                    ranked(log_p, top, is_exact, describe),
                )

    # -- generation -------------------------------------------------------------------

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Refuse generation: it writes one segmentation, and needs no sum.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "latent_tokens scores strings. To have text written, use the network's own "
            "generate, or lm_eval, whose latent_tokens writes as --model hf does"
        )

    # -- shared -----------------------------------------------------------------------

    def _scores(self, pieces: Sequence[Piece]) -> Scores:
        distinct = list(dict.fromkeys(p.scored for p in pieces if p.scored[1]))
        scores = self._reader.score(distinct, self._batch_size)
        return dict(zip(distinct, scores, strict=True))

    def _stretch(self, piece: Piece, scores: Scores) -> Stretch:
        one = scores[piece.scored].log_p[piece.leading :]
        room = self.network.positions + 1 - len(piece.given)
        return Stretch(piece.given, piece.summed, piece.tokens, one, room)

    def _walks(
        self,
        pieces: Sequence[Piece],
        names: Sequence[str],
        scores: Scores,
        at_once: int | None = None,
    ) -> list[SegmentationWalk]:
        """Search or draw segmentations, unless ``canonical`` is the estimator.

        Args:
            pieces: Strings.
            names: Keys of the random numbers of each.
            scores: Scores of their canonical segmentations.
            at_once: Most pieces that are searched together; None: as rows allow.

        Raises:
            ValueError: If ``exact`` has too many segmentations, or a text does not fit
                into memory; the error names the text.
        """
        if (estimator := self._estimator) is None:
            return []
        options, network = self._options, self.network
        if options.estimator == "exact":
            self._check_size(pieces, names)
        stretches = [self._stretch(piece, scores) for piece in pieces]
        blocks = [stretch.block for stretch in stretches]
        if at_once is not None:
            blocks = [max(blocks)] * len(blocks)

        def alike(n: int) -> tuple[int, int]:
            return len(stretches[n].given), blocks[n]

        # Equal given tokens are read once, and nothing is padded.
        order = sorted(range(len(pieces)), key=lambda n: (alike(n), pieces[n].given, n))
        walks: dict[int, SegmentationWalk] = {}

        def work(index: Sequence[int]) -> list[SegmentationWalk]:
            search = SegmentationSearch(
                network,
                [stretches[n] for n in index],
                estimator.plan,
                [stream_key(options.seed, f"\0{names[n]}") for n in index],
                blocks[index[0]],
            )
            return search.run()

        def size(n: int) -> int:
            return len(pieces[n].given) + len(pieces[n].tokens)

        def refusal(n: int) -> ValueError:
            return ValueError(
                f"{names[n]}: {size(n)} tokens with num_samples="
                f"{options.num_samples} do not fit into the memory of "
                f"{network.device}: give fewer samples or another device"
            )

        texts = at_once or max(1, self._rows // max(1, options.num_samples))
        while order:
            batch = [n for n in order[:texts] if alike(n) == alike(order[0])]
            for index, new in self._memory_of_walks.in_batches(
                batch, len(batch), work, size, refusal
            ):
                walks.update(zip(index, new, strict=True))
            order = order[len(batch) :]
        return [walks[n] for n in range(len(pieces))]

    def _check_size(self, pieces: Sequence[Piece], names: Sequence[str]) -> None:
        limit = self._options.max_segmentations
        for piece, name in zip(pieces, names, strict=True):
            if (size := piece.summed.num_prefixes) > limit:
                raise ValueError(
                    f"{name}: estimator=exact would read 10^{math.log10(size):.1f} "
                    f"beginnings of segmentations; max_segmentations={limit}. Use "
                    "estimator=dpf"
                )

    def _stream(self, query: Query) -> str:
        return f"{self._options.seed}/{query.name}"

    def _bar(self, total: int, unit: str) -> Any:
        title = f"segmentations ({self._options.estimator})"
        return self.progress(total, title, unit)


def _segmented(
    vocabulary: ByteVocabulary, piece: Piece, paths: Sequence[Tokens], number: int
) -> Description:
    """Describe a segmentation by its tokens with bars between them."""
    written = vocabulary.write(paths[number], begins=piece.summed.begins)
    return Description("|".join(part.decode(errors="replace") for part in written))


def _blocks(queries: Sequence[Query]) -> Iterator[Sequence[Query]]:
    for first in range(0, len(queries), QUERIES):
        yield queries[first : first + QUERIES]


class SegmentedLM(NetworkModel[TokensOptions, TokensScorer]):
    """A causal LM that scores strings by all of their segmentations."""

    auto_class = AutoModelForCausalLM
    table = TokensOptions

    def __init__(self, network: Network) -> None:
        """Take a network.

        Raises:
            ValueError: If it is no causal LM, or its tokenizer a slow one.
        """
        self.network = network
        size = network.model.config.get_text_config().vocab_size
        self.vocabulary = ByteVocabulary.of(network.tokenizer, size)
        check_causal(network.model)

    def _scorer(
        self,
        options: TokensOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> TokensScorer:
        return TokensScorer(
            self.network, self.vocabulary, options, batch_size, most, quiet
        )
