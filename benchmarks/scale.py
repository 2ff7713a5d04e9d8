"""A graph of a million entities and ten million edges, a text of 100,000 words.

    python benchmarks/scale.py [--entities 1000000] [--edges 10000000] [--words 100000]
    python benchmarks/scale.py --part corpus --words 8000

Builds a graph of random triples and an untrained model over it, then, each in a fresh
process of one thread: loads the graph, loads the model and scores one text of 200
words, and scores documents with the demonstration model. Prints seconds and peak
resident memory of each process beside what it had before it began. The part ``corpus``
is for itself: it keeps and totals the answers of so many texts of ten words, as the
process that starts workers does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RELATIONS, WORDS, LENGTH, PORTION = 500, 10_000, 200, 100_000
GRAPH, MODEL = "graph", "model"


def peak() -> float:
    """Largest resident memory of this process so far, in MB."""
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return what it returns and the seconds it took."""
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def report(what: str, seconds: float, before: float, **more: object) -> None:
    """Print one measurement."""
    figures = {"seconds": round(seconds, 2), "MB before": round(before)}
    print(json.dumps({what: figures | {"MB at the peak": round(peak())} | more}))


# -- parts, each in a process of its own -----------------------------------------------


def build(args: argparse.Namespace) -> None:
    """Build the graph from triples of names, and a model over it."""
    import numpy as np
    import torch

    from lm_latent_eval.models.checkpoint import save
    from lm_latent_eval.models.kglm.configuration import KGLMConfig
    from lm_latent_eval.models.kglm.graph import KnowledgeGraph
    from lm_latent_eval.models.kglm.modeling import KGLM
    from lm_latent_eval.text.words import WordTokenizer

    rng = np.random.default_rng(args.seed)
    names = [f"entity {i}" for i in range(args.entities)]
    relations = [f"relation {i}" for i in range(RELATIONS)]
    words = rng.integers(4, WORDS, size=(args.entities, 4)).tolist()
    aliases = {name: [w[:2], w[2:]] for name, w in zip(names, words, strict=True)}

    def triples() -> Iterator[tuple[str, str, str]]:
        for done in range(0, args.edges, PORTION):
            size = min(PORTION, args.edges - done)
            ends = rng.integers(args.entities, size=(2, size)).tolist()
            relation = rng.integers(RELATIONS, size=size).tolist()
            for s, r, o in zip(ends[0], relation, ends[1], strict=True):
                yield names[s], relations[r], names[o]

    before = peak()
    graph, seconds = timed(
        lambda: KnowledgeGraph.build(
            triples(), aliases, max_aliases=2, max_alias_words=2, inverse=False
        )
    )
    report("build", seconds, before, nodes=graph.num_nodes, edges=graph.num_edges)
    folder = Path(args.directory, GRAPH)
    folder.mkdir()
    _, seconds = timed(lambda: graph.save(folder))
    (file,) = folder.iterdir()
    report("write", seconds, before, **{"MB of the file": file.stat().st_size / 1e6})

    uttered = " ".join(f"w{i}" for i in range(WORDS - 4))
    tokenizer = WordTokenizer.train([uttered], min_count=1)
    torch.manual_seed(args.seed)
    config = KGLMConfig(
        vocab_size=tokenizer.vocab_size,
        num_words=tokenizer.num_words,
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        token_embedding_dim=32,
        entity_embedding_dim=16,
        hidden_size=48,
        max_aliases=2,
        max_alias_words=2,
        proposals=["smoothing"],
    )
    model = KGLM(config, graph)
    save(model, tokenizer, Path(args.directory, MODEL), model.state_dict())


def load(args: argparse.Namespace) -> None:
    """Load the graph."""
    from lm_latent_eval.models.kglm.graph import KnowledgeGraph

    before = peak()
    _, seconds = timed(lambda: KnowledgeGraph.load(Path(args.directory, GRAPH)))
    report("load the graph", seconds, before)


def score(args: argparse.Namespace) -> None:
    """Load the model and score a text."""
    import torch

    from lm_latent_eval.models.checkpoint import load_checkpoint

    before = peak()
    checkpoint, seconds = timed(lambda: load_checkpoint(Path(args.directory, MODEL)))
    report("load the model", seconds, before)
    generator = torch.Generator().manual_seed(args.seed)
    words = torch.randint(4, WORDS, (LENGTH,), generator=generator).tolist()
    before = peak()
    log_w, seconds = timed(lambda: weigh(checkpoint.model, words, args))
    report(f"score {LENGTH} words", seconds, before, log_p=log_evidence(log_w))


def document(args: argparse.Namespace) -> None:
    """Score a document with the demonstration model."""
    from lm_latent_eval.demo import CHECKPOINT, documents
    from lm_latent_eval.models.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(CHECKPOINT)
    texts = [" ".join(d["tokens"]) for d in documents("dev")]
    ids = [i for text in texts for i in checkpoint.tokenizer(text).ids]
    ids = (ids * (args.words // len(ids) + 1))[: args.words]
    weigh(checkpoint.model, ids[:LENGTH], args)
    before = peak()
    log_w, seconds = timed(lambda: weigh(checkpoint.model, ids, args))
    report(f"score {args.words} words", seconds, before, log_p=log_evidence(log_w))


def corpus(args: argparse.Namespace) -> None:
    """Keep and total answers of a model without latents."""
    from dataclasses import replace

    from lm_latent_eval.report.numbers import table_of
    from lm_latent_eval.scoring.answer import Answer
    from lm_latent_eval.scoring.files import keep, read_answers
    from lm_latent_eval.scoring.records import FORMAT, row_of
    from lm_latent_eval.scoring.totals import Totals

    settings = {"format": FORMAT, "num_texts": args.words, "model": "exact"}

    def rows(_: object) -> Iterator[dict[str, Any]]:
        for n in range(args.words):
            text = f"{n} is one of many texts of exactly ten words"
            yield row_of(replace(Answer.exact(-40.0 - n % 97 / 7, text), index=n))

    def work() -> str:
        keep(output, settings, rows)
        _, answers = read_answers(output)
        return table_of(settings, Totals(answers), finished=True)

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "scores.jsonl")
        before = peak()
        printed, seconds = timed(work)
    report(f"keep and total {args.words} texts", seconds, before)
    print(printed)


def weigh(model: Any, words: list[int], args: argparse.Namespace) -> Any:
    """Return the log-weights of one text under the model's own proposal."""
    from lm_latent_eval.inference import ImportanceSampling
    from lm_latent_eval.inference.interface import Texts
    from lm_latent_eval.inference.streams import stream_key
    from lm_latent_eval.text.batch import TokenBatch
    from lm_latent_eval.text.words import END, START

    batch = TokenBatch.collate([[*words, END]], first=START)
    method = ImportanceSampling(args.samples)
    keys = [stream_key(args.seed, "text")]
    return method.log_weights(Texts(model, model.proposal(), batch, keys))


def log_evidence(log_w: Any) -> float:
    """Return the estimate of one text."""
    from lm_latent_eval.estimators import log_evidence as estimate

    return float(estimate(log_w).item())


PARTS = {part.__name__: part for part in (build, load, score, document, corpus)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, help="one of them, in this process")
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        PARTS[args.part](args)
        return
    from importlib.metadata import version

    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"1 thread, torch {version('torch')}, safetensors {version('safetensors')}, "
        f"seed {args.seed}, K = {args.samples}, {args.entities} entities, "
        f"{args.edges} triples"
    )
    # This process stays small: what a child has before it begins is its imports.
    with tempfile.TemporaryDirectory() as directory:
        for part, words in (
            *(("build", 0), ("load", 0), ("score", 0)),
            *(("document", args.words // 10), ("document", args.words)),
        ):
            options = {"entities", "edges", "samples", "seed"}
            command = [sys.executable, __file__, "--part", part]
            command += ["--directory", directory, "--words", str(words)]
            command += [f"--{o}={getattr(args, o)}" for o in sorted(options)]
            subprocess.run(
                command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )


if __name__ == "__main__":
    main()
