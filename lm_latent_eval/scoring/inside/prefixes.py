r"""Prefix sums of latent models, and what each region adds to them.

.. math::
    -\log p(x_n \mid x_{<n}) = \log \sum_z p(x_{<n}, z) - \log \sum_z p(x_{\le n}, z)

Both sums are of prefixes: nothing after the region may decide which latents are kept.
A search that knew the rest would drop the readings that only the prefix favours, and
the surprise at the word that refutes them. So a proposal that reads ahead
(``Proposal.token``) searches each prefix by itself. Of others one search serves
all prefixes of a text, since it has decided all about a prefix before it reads on.

The random numbers of a place are the same in all searches of a text, so the errors of
two prefix sums are those of pairs of passes or draws, and much of them cancels.

A search that does not read ahead may have dropped the one reading that a word goes on
with: K histories all miss a reading of share 3 / K with a probability of 5 %. Passes
that all miss it agree. So a word is held against what the histories predict: where they
give all words that are as improbable together less than that share, a missed reading is
the likelier cause, and from there on no error of the sentence is told.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.estimators import Bound, Estimate, log_evidence
from lm_latent_eval.inference import Estimator
from lm_latent_eval.inference.interface import Texts, Weighted
from lm_latent_eval.latent import offers
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.evaluation import Evaluation, num_words
from lm_latent_eval.scoring.inside.regions import Regions, RegionScore
from lm_latent_eval.scoring.texts import Cutter, Text, naming
from lm_latent_eval.text.encoder import Reading

ROUNDING = 1e-6
"""Nats by which equal probabilities may differ."""
RARE = 3.0
"""Times 1 / K: the share of a reading that K histories miss, with 5 % probability."""


@dataclass
class Rows:
    """Log-weights of the prefixes of a text."""

    log_w: dict[int, Tensor]
    """Words of a prefix -> its row, as the estimator reads it."""
    refuted: float = math.inf
    """Words of the first prefix whose last word the histories did not foresee."""


@dataclass(frozen=True)
class Group:
    """Consecutive words of a sentence that belong to one region, or its end."""

    number: int | None
    """Number of the region; None: the end of the sentence or of the text."""
    stop: int
    """Number of the sentence's words before the group's end."""
    log_spacing: float
    """Cost of the white space in the group, nats."""
    unknown: int


@dataclass(frozen=True)
class Sentence:
    """A sentence with the groups of its words."""

    text: Text
    groups: list[Group]


def divided(cut: Cutter, regions: Regions) -> list[Sentence]:
    """Divide the sentences of a text.

    A word that reaches into a later region belongs to the later one.

    Raises:
        ValueError: As of ``Cutter.whole``.
    """
    texts = cut.whole(regions.query)
    with naming(regions.query):
        reading = cut.reader(regions.query.text)
    divided_sentences, first = [], 0
    for n, text in enumerate(texts):
        num_words = min(len(text.words), len(reading.ids) - first)
        last = first + num_words
        # Only the text's own end pays for the white space before it.
        spacing = reading.log_spacing[first : last + (n == len(texts) - 1)]
        owners = [_owner(regions, end) for end in reading.ends[first:last]]
        if len(text.words) > num_words or any(spacing[num_words:]):
            owners.append(None)
        groups = []
        for owner, positions in groupby(range(len(owners)), owners.__getitem__):
            members = [*positions]
            group = Group(
                owner,
                min(members[-1] + 1, len(text.words)),
                math.fsum(spacing[members[0] : members[-1] + 1]),
                sum(_is_unknown(reading, first + m) for m in members if m < num_words),
            )
            groups.append(group)
        divided_sentences.append(Sentence(text, groups))
        first = last
    return divided_sentences


def _owner(regions: Regions, end: int) -> int | None:
    """Return which region a word that ends there belongs to; None: none any more."""
    owner = bisect_left(regions.ends, end)
    return owner if owner < len(regions.ends) else None


def _is_unknown(reading: Reading, word: int) -> bool:
    left_out = bool(reading.left_out) and reading.left_out[word] > 0
    return bool(reading.log_unknown[word] or reading.unspelled[word] or left_out)


@dataclass(frozen=True)
class Prefixes:
    """Estimates the regions of texts, after those before them."""

    evaluation: Evaluation

    def scores(
        self, texts: Sequence[Sequence[Sentence]], missed: Missed
    ) -> Iterator[tuple[int, list[RegionScore]]]:
        """Estimate regions.

        Args:
            texts: The sentences of each text.
            missed: Collects texts of which no latent was found.

        Raises:
            ValueError: If the model gives prefixes no probability.
        """
        self.evaluation.refuse_parts("a word after the words before it")
        sentences = {s.text.name: s for parts in texts for s in parts}
        waiting = {parts[0].text.query.index: len(parts) for parts in texts if parts}
        by_query: dict[int, list[tuple[int, RegionScore]]] = {}
        words = sum(len(s.text.words) for s in sentences.values())
        with self.evaluation.bar(words, "words") as bar:
            ordered = [sentence.text for sentence in sentences.values()]
            for text, rows in self._weighed(ordered, sentences, bar):
                query = text.query
                with missed.aside(query):
                    scored = self._scored(sentences[text.name], rows)
                    by_query.setdefault(query.index, []).extend(
                        (text.sentence, score) for score in scored
                    )
                    waiting[query.index] -= 1
                if not waiting[query.index]:
                    yield query.index, _together(by_query.pop(query.index))

    def _weighed(
        self, texts: list[Text], sentences: dict[str, Sentence], bar: tqdm
    ) -> Iterator[tuple[Text, Rows]]:
        """Yield the rows of every prefix that ends a group."""
        method = self.evaluation.method
        stops = {
            name: {group.stop for group in sentence.groups}
            for name, sentence in sentences.items()
        }
        if offers(self.evaluation.stepwise, "token"):
            yield from self._apart(method, texts, stops, bar)
            return
        at_once = partial(self._in_one_search, method, stops)
        for batch, rows in self.evaluation.in_batches(texts, at_once):
            bar.update(num_words(batch))
            yield from zip(batch, rows, strict=True)

    def _in_one_search(
        self, method: Estimator, stops: dict[str, set[int]], texts: Sequence[Text]
    ) -> list[Rows]:
        """Read texts word by word."""
        begun, _ = self.evaluation.read_contexts(texts)
        rows = [Rows({0: row}) for row in begun.log_w.cpu()]
        batch = self.evaluation.collate(texts)
        going_on = self.evaluation.continued(texts, batch, [0] * len(texts))
        lengths, reading = batch.on_host[1], torch.arange(len(texts))
        for t in range(int(lengths.max())):
            (on,) = (lengths[reading] > t).nonzero(as_tuple=True)
            reading, before = reading[on], begun.select(on)
            piece = going_on.select(reading).piece(t, t + 1)
            begun = method.extend(piece, before)
            log_w = begun.log_w.cpu()
            for b in reading[self._refuted(method, piece, before, log_w)].tolist():
                rows[b].refuted = min(rows[b].refuted, t + 1)
            for b, row in zip(reading.tolist(), log_w, strict=True):
                if t + 1 in stops[texts[b].name]:
                    rows[b].log_w[t + 1] = row
        return rows

    def _refuted(
        self,
        method: Estimator,
        piece: Texts,
        before: Weighted,
        log_w: Tensor,
    ) -> Tensor:
        """Return which texts have a word that their histories did not foresee.

        A model that predicts no word cannot say: any improbable word is one, then.

        Args:
            method: The estimator.
            piece: The next word of each text.
            before: What has read the text before it.
            log_w: Rows of the weights with the word.

        Returns:
            Numbers of texts on the host.
        """
        log_rare = math.log(RARE / method.num_samples)
        pairs = zip(log_w, before.log_w.cpu(), strict=True)
        rare = [
            method.checks
            and log_ratio(method, row, old) < log_rare
            and bool(row.isfinite().any())
            and method.estimate(row, 1).bound is not Bound.EXACT
            for row, old in pairs
        ]
        (index,) = torch.tensor(rare).nonzero(as_tuple=True)
        model = self.evaluation.model
        if not len(index) or not offers(model, "next_token"):
            return index
        piece, before = piece.select(index), before.select(index)
        ahead = before.ahead(model, piece.batch.inputs[:, 0], piece.batch.given)
        predicted = ahead.next_token(model, piece.keys, piece.starts).cpu()
        word = piece.batch.on_host[0].clone()
        unknown = self.evaluation.reader.unknown
        if unknown is not None:  # a word that nothing can copy
            word[predicted.gather(1, word).isneginf()] = unknown
        log_p = predicted.gather(1, word)
        no_likelier = predicted.masked_fill(predicted > log_p + ROUNDING, -torch.inf)
        return index[no_likelier.logsumexp(-1) < log_rare]

    def _apart(
        self,
        method: Estimator,
        texts: Sequence[Text],
        stops: dict[str, set[int]],
        bar: tqdm,
    ) -> Iterator[tuple[Text, Rows]]:
        """Search each prefix by itself, as a text of which nothing else is known."""

        def work(prefixes: Sequence[Text]) -> Tensor:
            begun, _ = self.evaluation.read_contexts(prefixes)
            batch = self.evaluation.collate(prefixes)
            starts = [0] * len(prefixes)
            whole = self.evaluation.continued(prefixes, batch, starts)
            return method.extend(whole, begun).log_w.cpu()

        for text in texts:
            prefixes = [
                replace(
                    text, words=text.words[:stop], word_costs=text.word_costs[:stop]
                )
                for stop in {0, *stops[text.name]}
            ]
            rows = Rows({})
            for batch, log_w in self.evaluation.in_batches(prefixes, work):
                for prefix, row in zip(batch, log_w, strict=True):
                    rows.log_w[len(prefix.words)] = row
            bar.update(len(text.words))
            yield text, rows

    def _scored(self, sentence: Sentence, rows: Rows) -> list[RegionScore]:
        method, before, spacing = self.evaluation.method, 0, 0.0
        scores = []
        for group in sentence.groups:
            words, after = group.stop - before, spacing + group.log_spacing
            whole, prefix = rows.log_w[group.stop] + after, rows.log_w[before] + spacing
            estimate = difference(method, whole, prefix, words)
            if group.stop >= rows.refuted:
                estimate = replace(estimate, stderr=None, replicates=())
            scores.append(RegionScore(group.number, estimate, group.unknown))
            before, spacing = group.stop, after
        return scores


def difference(
    method: Estimator, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
) -> Estimate:
    """Estimate log p(region | prefix) from the rows of both prefix sums.

    It is exact where both sums are, and has an error where both have one: passes that
    contradict each other about a prefix tell nothing of what follows it.
    """
    prefix = method.estimate(log_w_prefix, num_tokens)
    whole = method.estimate(log_w, num_tokens)
    if whole.bound is Bound.EXACT and prefix.bound is not Bound.EXACT:
        log_w = log_w.clone()
        log_w[-1] = -torch.inf  # the mark of what was cut, see ``with_mark``
    estimate = method.difference(log_w, log_w_prefix, num_tokens)
    if prefix.stderr is None or whole.stderr is None:
        return replace(estimate, stderr=None, replicates=())
    return estimate


def log_ratio(method: Estimator, log_w: Tensor, log_w_prefix: Tensor) -> float:
    """Return the estimated log p of what lies between two prefixes, nats."""
    whole, prefix = method.unbiased(log_w), method.unbiased(log_w_prefix)
    return (log_evidence(whole) - log_evidence(prefix)).item()


def _together(scores: Sequence[tuple[int, RegionScore]]) -> list[RegionScore]:
    """Put the sentences of a text together; regions that lie in two are multiplied."""
    joined: list[RegionScore] = []
    for _, score in sorted(scores, key=lambda pair: pair[0]):
        same = [n for n, other in enumerate(joined) if other.number == score.number]
        if score.number is None or not same:
            joined.append(score)
            continue
        other = joined[same[0]]
        joined[same[0]] = replace(
            other,
            estimate=Estimate.product([other.estimate, score.estimate]),
            unknown=other.unknown + score.unknown,
        )
    return joined
