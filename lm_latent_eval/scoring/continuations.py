"""log p-hat of continuations, and whether they are the most probable ones."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lm_latent_eval.estimators.rounding import first_of_best
from lm_latent_eval.inference.interface import Weighted
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.cost import announce
from lm_latent_eval.scoring.missed import Missed
from lm_latent_eval.scoring.setting import Setting
from lm_latent_eval.scoring.texts import Text
from lm_latent_eval.text.batch import TokenBatch

logger = logging.getLogger(__name__)


def read_contexts(
    setting: Setting, texts: Sequence[Text]
) -> tuple[Weighted, TokenBatch | None]:
    """Return the weighted latents of contexts, and what texts are conditional on."""
    batch = setting.collate(texts, contexts=True)
    read = setting.method.extend(
        setting.model,
        setting.stepwise,
        batch,
        setting.keys(texts),
        [0] * len(texts),
        Particles.begin(len(texts), setting.model.device),
    )
    return read, batch.given


@dataclass(frozen=True)
class Read:
    """Contexts that were read."""

    place: dict[Hashable, int]
    """Which of the B each is."""
    particles: Weighted
    likely: Tensor
    """The most probable word after each, on the host, (B,)."""

    def of(self, texts: Sequence[Text]) -> tuple[Weighted, Tensor]:
        """Return particles and most probable word of each text's context."""
        index = torch.tensor([self.place[text.given] for text in texts])
        return self.particles.select(index), self.likely[index]


@dataclass(frozen=True)
class Continuations:
    """Estimates texts after their contexts, each of which is read once."""

    setting: Setting

    def parts(self, texts: list[Text], missed: Missed) -> Iterator[tuple[Text, Answer]]:
        """Estimate continuations.

        Args:
            texts: As ``cut.continuation`` returns them.
            missed: Takes in those that nothing was found of.

        Raises:
            ValueError: If the model is unnormalised, or a text cannot be scored.
        """
        self.setting.refuse_parts("a continuation after its context")
        if self.setting.options.target_stderr is not None:
            logger.warning(
                "target_stderr is for whole texts: continuations take num_samples=%d",
                self.setting.options.num_samples,
            )
        shared: dict[Hashable, list[Text]] = {}
        for text in texts:
            shared.setdefault(text.given, []).append(text)
        contexts = [texts[0] for texts in shared.values()]
        announce([(self.setting.method, [t.num_words for t in texts])], stepwise=True)
        num_samples = self.setting.method.num_samples
        with self.setting.bar(len(texts), "continuations") as bar:
            for batch in self.setting.batches(contexts, num_samples):
                for some, read in self.setting.fitting(batch, self._read):
                    # Continuations in batches of their own, with their contexts' state.
                    after = [text for each in some for text in shared[each.given]]
                    go_on = partial(self._continue, read, missed)
                    for part in self.setting.batches(after, num_samples):
                        for done, answers in self.setting.fitting(part, go_on):
                            yield from answers
                            bar.update(len(done))

    def _read(self, contexts: Sequence[Text]) -> Read:
        """Read contexts, and predict the word after each."""
        particles, given = read_contexts(self.setting, contexts)
        last = [self.setting.last(context) for context in contexts]
        place = {context.given: b for b, context in enumerate(contexts)}
        keys = self.setting.keys(contexts)
        starts = [len(context.context) for context in contexts]
        likely = self._most_probable(last, particles, given, keys, starts)
        return Read(place, particles, likely)

    def _continue(
        self, read: Read, missed: Missed, texts: Sequence[Text]
    ) -> list[tuple[Text, Answer]]:
        """Weigh continuations under their contexts' latents."""
        before, likely = read.of(texts)
        batch = self.setting.collate(texts)
        after = self.setting.method.extend(
            self.setting.model,
            self.setting.stepwise,
            batch,
            self.setting.keys(texts),
            [len(text.context) for text in texts],
            before,
        )
        greedy = self._are_greedy(texts, batch, before, likely)
        answers = []
        rows = zip(texts, after.log_w.cpu(), before.log_w.cpu(), strict=True)
        for (text, log_w, prefix), is_greedy in zip(rows, greedy.tolist(), strict=True):
            with missed.aside(text.query):
                method, weights = self.setting.method, log_w + text.log_spacing
                if text.condition is None:
                    estimate = method.difference(weights, prefix, len(text.words))
                else:  # what is given has no probability, so this is a bound
                    estimate = method.estimate(weights, len(text.words))
                answers.append((text, Answer.of(text, estimate, is_greedy=is_greedy)))
        return answers

    def _are_greedy(
        self,
        texts: Sequence[Text],
        batch: TokenBatch,
        particles: Weighted,
        likely: Tensor,
    ) -> Tensor:
        """Compare continuations with the estimated marginals, token by token.

        Only those are read on that have been greedy so far: most end at once.
        """
        keys, starts = self.setting.keys(texts), [len(text.context) for text in texts]
        targets, length = batch.on_host
        greedy = torch.ones_like(length, dtype=torch.bool)
        (rows,) = (length > 0).nonzero(as_tuple=True)
        particles, likely = particles.select(rows), likely[rows]
        for t in range(int(length.max())):
            target = targets[rows, t]
            # The unknown word is many words: its probability is no argument for one.
            greedy[rows] = target == likely
            if self.setting.reader.unknown is not None:
                greedy[rows] &= target != self.setting.reader.unknown
            (on,) = (greedy[rows] & (length[rows] > t + 1)).nonzero(as_tuple=True)
            if not len(on):
                break
            rows = rows[on]
            piece = batch.select(rows).piece(t, t + 1)
            mine = [keys[b] for b in rows.tolist()]
            here = [starts[b] + t for b in rows.tolist()]
            particles = self.setting.method.extend(
                self.setting.model,
                self.setting.stepwise,
                piece,
                mine,
                here,
                particles.select(on),
            )
            after = [start + 1 for start in here]
            likely = self._most_probable(
                targets[rows, t], particles, piece.given, mine, after
            )
        return greedy

    def _most_probable(
        self,
        last: Tensor | Sequence[int],
        particles: Weighted,
        given: TokenBatch | None,
        keys: list[int],
        starts: list[int],
    ) -> Tensor:
        """Return the most probable word after each text, whose last word is ``last``.

        Both are on the host.
        """
        inputs = torch.as_tensor(last, device=self.setting.model.device)
        model = self.setting.model
        read = particles.ahead(model, inputs, given)
        predicted = read.next_token(model, keys, starts)
        return first_of_best(predicted).cpu()
