"""What KGLM's limits of candidates lose in a large world, and what they save.

    python -m benchmarks.large_world [--nodes 100000] [--texts 20]

The world is the demonstration's, with copies of it that no text is about: their
entities have the weights of the originals, their names mix the words of all names, and
three tenths of their facts are about originals, some of which become hubs. As new
entities all copies of one are together as probable as the original. Nothing is trained.

Texts of the demonstration are scored by the default, with the limits as they are and
with each a fourth of it and fourfold. A row says how many nodes a text has as states;
by how much log p is above that of the first row, nats (the mean over texts, and the
largest change either way); the median half-width of printed intervals, and how many
texts have none; CPU seconds a text, and the peak memory of the process. What another
seed changes is the row below the first.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from unittest import mock

import numpy as np
import torch

import lm_latent_eval
from benchmarks.estimators import altered, half_width
from benchmarks.scale import peak
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.kglm import candidates, outlooks
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import REFLEXIVE, KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.batch import TokenBatch

SHARED = 0.3
"""Share of the facts of a copy that are about an original."""
OTHER_WORD = 0.5
"""Share of the words of a copy's names that another name has at their place."""
BY_ENTITY = [
    f"generative.trunk.{name}" for name in ("entity_embeddings.weight", "new_bias")
]
SEED = "seed"
ROWS: dict[str, dict[str, int]] = {
    "as they are": {},
    "other random numbers": {SEED: 1},
    **{
        f"{name} {how}": {name: int(getattr(candidates, name) * factor)}
        for name in ("MOST_PAIRS", "COMMON", "LINKED")
        for how, factor in (("/ 4", 0.25), ("x 4", 4))
    },
}


def copied(graph: KnowledgeGraph, copies: int) -> KnowledgeGraph:
    """Return a graph and copies of its nodes; node n of copy c is c (N - 1) + n."""
    rng, number = np.random.default_rng(0), graph.num_nodes - 1
    names = graph.relation_names
    place = {name: r for r, name in enumerate(names)}
    inverse = np.array([place.get(f"inverse of {name}", 0) for name in names])
    relation = graph.edge_relation.numpy()
    forward = inverse[relation] > 0
    head, tail = np.divmod(graph.edge_key.numpy()[forward], graph.num_nodes)
    relation = np.tile(relation[forward], copies + 1)
    copy = np.repeat(np.arange(copies + 1), len(head))
    to = copy * (rng.random(len(copy)) > SHARED)
    head, tail = (np.tile(end, copies + 1) for end in (head, tail))
    head, tail = head + number * copy, tail + number * to
    every = np.arange(1, number * (copies + 1) + 1)
    size = len(every) + 1
    key = np.concatenate([head * size + tail, tail * size + head, every * (size + 1)])
    loop = np.full(len(every), names.index(REFLEXIVE))
    relation = np.concatenate([relation, inverse[relation], loop])
    order = np.lexsort([relation, key])
    aliases = np.tile(graph.aliases.numpy()[1:], (copies, 1, 1))
    other = aliases[rng.permutation(len(aliases))]
    swapped = (aliases > 0) & (other > 0) & (rng.random(aliases.shape) < OTHER_WORD)
    aliases[swapped] = other[swapped]
    return replace(
        graph,
        edge_key=torch.from_numpy(key[order]),
        edge_relation=torch.from_numpy(relation[order].astype(np.int32)),
        entity_of=torch.arange(size),
        aliases=torch.cat([graph.aliases, torch.from_numpy(aliases)]),
        node_names=[f"node {n}" for n in range(size)],
        num_entities=size,
        known_lookups=None,
    )


def large(checkpoint: Checkpoint, num_nodes: int) -> Checkpoint:
    """Return a model over copies of its graph, about so many nodes in all."""
    small = checkpoint.model
    copies = num_nodes // small.knowledge.num_nodes
    graph = copied(small.knowledge, copies)
    settings = small.config.to_dict() | {"num_entities": graph.num_entities}
    model = KGLM(KGLMConfig(**settings | {"proposals": []}), graph)
    weights = {name: small.state_dict()[name] for name in model.state_dict()}
    for name in BY_ENTITY:
        weight = weights[name]
        copy = weight[1:] - (math.log(copies) if weight.ndim == 1 else 0.0)
        weights[name] = torch.cat([weight, *[copy] * copies])
    model.load_state_dict(weights)
    return replace(checkpoint, model=model.eval().requires_grad_(False))


def scores(
    limits: dict[str, int], asked: argparse.Namespace
) -> tuple[list[int], list[Estimate], list[float], float]:
    """Return states, estimates and CPU seconds of texts, and the process's memory."""
    torch.set_num_threads(1)
    for name in limits.keys() - {SEED}:
        setattr(candidates, name, limits[name])
    small = lm_latent_eval.load(CHECKPOINT, device="cpu").checkpoint
    world, options = large(small, asked.nodes), ScoringOptions(seed=limits.get(SEED, 0))
    texts = altered(["as they are"], asked.texts, 0)["as they are"]
    states, found, seconds = list[int](), list[Estimate](), list[float]()

    def counted(batch: TokenBatch, graph: KnowledgeGraph) -> candidates.Candidates:
        found = candidates.candidates_of(batch, graph)
        states.append(found.nodes.shape[1])
        return found

    Scorer(small, options, quiet=True).score_texts([Query(0, "compiles", texts[0])])
    scorer = Scorer(world, options, quiet=True)
    with mock.patch.object(outlooks, "candidates_of", counted):
        for n, text in enumerate(texts):
            begin = time.process_time()
            [answer] = scorer.score_texts([Query(0, f"text/{n}", text)])
            seconds.append(time.process_time() - begin)
            found.append(answer.estimate)
    return states, found, seconds, peak()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--rows", nargs="+", default=[*ROWS], choices=[*ROWS])
    asked = parser.parse_args()
    head = ["limits", "states", "log p", "at most", "half-width", "N/A", "CPU s", "MB"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    spawn, plain = multiprocessing.get_context("spawn"), list[Estimate]()
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        for name in asked.rows:
            job = processes.submit(scores, ROWS[name], asked)
            states, found, seconds, memory = job.result()
            plain = plain or found
            pairs = zip(found, plain, strict=True)
            more = [one.log_evidence - other.log_evidence for one, other in pairs]
            half = [half_width(e) for e in found if e.stderr is not None]
            cells = [name, f"{statistics.fmean(states):.0f}"]
            cells += [f"{statistics.fmean(more):+.3f}", f"{max(more, key=abs):+.3f}"]
            cells += [f"{statistics.median(half):.3f}" if half else "N/A"]
            cells += [f"{len(found) - len(half)}"]
            cells += [f"{statistics.fmean(seconds):.1f}", f"{memory:.0f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
