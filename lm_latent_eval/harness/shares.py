"""Load balancing: redistribution of requests over processes by length.

lm-eval gives every process each n-th document, however long it is, and all wait for the
one whose documents are longest. Random numbers follow from a request's name, so whoever
answers it finds the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lm_latent_eval.harness.answers import MissedFloat, Scored, ScoredFloat
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.harness.records import Keep
from lm_latent_eval.scoring.answer import Answer, MissedTextsError
from lm_latent_eval.scoring.texts import Query


@dataclass(frozen=True)
class Request:
    """A request of lm-eval's as any process can answer it."""

    query: Query
    arguments: tuple[str, ...]
    """What lm-eval asks with: a context and its continuation, or a text, before which
    0.5 puts an empty one."""
    whole: bool
    """Whether it is a whole text."""
    task_name: str | None
    doc_id: int | None
    idx: int
    owner: int = 0
    """Rank of the process that asks."""

    @property
    def group(self) -> tuple[int, str]:
        """What requests have in common that share a context."""
        return self.owner, self.query.name

    def answered(self, answer: Answer) -> ScoredFloat:
        """Put an answer, whoever gave it, in the place of its query."""
        *context, text = self.arguments
        placed = replace(answer, index=self.query.index)
        return ScoredFloat(placed.about(text, *(() if self.whole else context)))


Score = Callable[[Sequence[Query]], Iterator[Answer]]


def answered(
    requests: Sequence[Request], score: Score, keep: Keep
) -> Iterator[tuple[Request, Scored]]:
    """Yield requests with their answers, as soon as they are found and kept.

    Those that have no number come last.
    """
    queries = [replace(r.query, index=n) for n, r in enumerate(requests)]
    try:
        for answer in score(queries):
            request = requests[answer.index]
            scored = request.answered(answer)
            keep(request, scored)
            yield request, scored
    except MissedTextsError as err:
        for n, name in err.names.items():
            yield requests[n], MissedFloat(name, err.why)


def shared(
    requests: Sequence[Request], processes: Processes, score: Score, keep: Keep
) -> Iterator[tuple[Request, Scored]]:
    """Answer this process's requests together with the other processes.

    Args:
        requests: Those of this process. All processes must call, or all wait.
        processes: Who they are shared among.
        score: Answers queries.
        keep: Told each answer as soon as it is found, by the process that finds it.

    Yields:
        This process's requests with their answers; in several processes none before
        all are found.
    """
    if processes.world_size == 1:
        yield from answered(requests, score, keep)
        return
    own = [replace(request, owner=processes.rank) for request in requests]
    share = balanced(processes.gather(own), processes.world_size)[processes.rank]
    found: list[list[tuple[Request, Scored]]] = [
        [] for _ in range(processes.world_size)
    ]
    for request, scored in answered(share, score, keep):
        found[request.owner].append((request, scored))
    given = [processes.gather_object(part, rank) for rank, part in enumerate(found)]
    for part in given[processes.rank] or ():
        yield from part


def balanced(requests: Sequence[Request], number: int) -> list[list[Request]]:
    """Share requests out: the longest first, each to whoever has least so far.

    Those that share a context stay together: it is read once.

    Reference:
        Graham (1969), "Bounds on multiprocessing timing anomalies", theorem 2: the
        largest share is at most 4/3 of what it must be.

    Example:
        >>> def request(n, text):
        ...     return Request(Query(n, f"task/{n}", text), (text,), True, "task", n, 0)
        >>> requests = [request(n, "x" * size) for n, size in enumerate([9, 3, 1, 5])]
        >>> [[r.doc_id for r in share] for share in balanced(requests, 2)]
        [[0], [3, 1, 2]]
    """
    groups: dict[tuple[int, str], list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    shares: list[list[Request]] = [[] for _ in range(number)]
    total = [0] * number
    for group in sorted(groups.values(), key=_length, reverse=True):
        least = total.index(min(total))
        shares[least] += group
        total[least] += _length(group)
    return shares


def _length(group: Sequence[Request]) -> int:
    """Return the characters of a group, a context's once."""
    contexts = {request.query.context for request in group}
    return sum(map(len, contexts)) + sum(len(r.query.text) for r in group)
