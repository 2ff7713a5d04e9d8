"""Generation of continuations word by word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.scoring.continuations import read_contexts
from lm_latent_eval.scoring.cost import announce
from lm_latent_eval.scoring.decoding import GenerationOptions, Utterance
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.texts import Text, naming
from lm_latent_eval.text.batch import TokenBatch


def generate(
    evaluation: Evaluation, texts: list[Text], options: Mapping[int, GenerationOptions]
) -> Iterator[tuple[int, str]]:
    """Continue contexts.

    Args:
        evaluation: Of the model.
        texts: Whose contexts are continued.
        options: Of each query, by its index.

    Yields:
        The query's index and what was written.

    Raises:
        ValueError: If the model is unnormalised.
    """
    evaluation.refuse_parts("the next word")
    words = [len(t.context) + options[t.query.index].max_tokens for t in texts]
    announce([(evaluation.method, words)])
    with evaluation.bar(len(texts), "generations") as bar:
        for batch in evaluation.batches(texts, evaluation.method.num_samples):
            write = partial(_written, evaluation, options)
            for some, written in evaluation.fitting(batch, write):
                yield from written
                bar.update(len(some))


def _written(
    evaluation: Evaluation,
    options: Mapping[int, GenerationOptions],
    texts: Sequence[Text],
) -> list[tuple[int, str]]:
    """Continue a batch; what is finished leaves it."""
    found = []
    model, reader = evaluation.model, evaluation.reader
    particles, given = read_contexts(evaluation, evaluation.method, texts)
    writing = [(t, Utterance(t.context, options[t.query.index], reader)) for t in texts]
    read = 0
    while writing:
        now = [text for text, _ in writing]
        last = torch.tensor(
            [(u.ids or [reader.start])[-1] for _, u in writing], device=model.device
        )
        keys, starts = evaluation.keys(now), [len(text.context) + read for text in now]
        particles = particles.ahead(model, last, given)
        log_p = particles.next_token(model, keys, starts)
        chance = Streams(evaluation.keys(now, "utter"), 1)(read)
        for (text, utterance), row, u in zip(writing, log_p, chance, strict=True):
            with naming(text.query):
                utterance.extend(row, float(u[0, 0]))
        for text, utterance in writing:
            if utterance.finished:
                found.append((text.query.index, utterance.text()))
        if all(utterance.finished for _, utterance in writing):
            break
        # The finished ones have no word to go on with, and leave the batch after it.
        added = [[] if u.finished else u.ids[-1:] for _, u in writing]
        particles = evaluation.method.extend(
            model,
            evaluation.stepwise,
            TokenBatch.collate(
                added,
                [reader.price(ids) for ids in added],
                first=last.tolist(),
                spelled=evaluation.spelled,
                given=evaluation.conditions(now),
                device=model.device,
            ),
            keys,
            starts,
            particles,
        )
        rows = [row for row, (_, u) in enumerate(writing) if not u.finished]
        particles = particles.select(torch.tensor(rows))
        given = given and given.select(torch.tensor(rows))
        writing = [writing[row] for row in rows]
        read += 1
    return found
