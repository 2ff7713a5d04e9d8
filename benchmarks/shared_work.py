"""What sharing work among samples saves: K samples in one go against K times one.

    python benchmarks/shared_work.py [--samples 100] [--rounds 3]

A KGLM of the size in its paper (vocabulary 10,000, 300 dimensions, 3 layers, 10,000
entities with 20 edges each) weighs samples of one text of 200 words, once with all K
samples together (the recurrent pass once, each position and entity scored once) and
once one sample at a time. The log-weights must agree. Prints the ratio, measured side
by side.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time

import torch

from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.text.batch import TokenBatch

WORDS, ENTITIES, RELATIONS, DEGREE, LENGTH = 10_000, 10_000, 500, 20, 199


def build_model(seed: int) -> KGLM:
    """Build a KGLM with random weights over a random graph."""
    dice = random.Random(seed)
    names = [f"entity {i}" for i in range(ENTITIES - 1)]
    graph = KnowledgeGraph.build(
        [
            (name, f"relation {dice.randrange(RELATIONS)}", dice.choice(names))
            for name in names
            for _ in range(DEGREE)
        ],
        {
            n: [[dice.randrange(4, WORDS) for _ in range(2)] for _ in range(2)]
            for n in names
        },
        max_aliases=4,
        max_alias_words=8,
        inverse=False,
    )
    torch.manual_seed(seed)
    config = KGLMConfig(
        vocab_size=WORDS,
        num_entities=graph.num_entities,
        num_relations=len(graph.relation_names),
        token_embedding_dim=300,
        entity_embedding_dim=100,
        hidden_size=300,
        num_layers=3,
        proposals=["peeking"],
    )
    model = KGLM(config, graph).eval().requires_grad_(False)
    for trunk in (model.generative.trunk, model.proposals["peeking"]):
        trunk.mention.bias.copy_(torch.tensor([2.2, 0.0, 0.0, 0.3]))
    return model


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = build_model(args.seed)
    proposal = model.proposal("peeking")
    dice = random.Random(args.seed)
    batch = TokenBatch.collate(
        [[dice.randrange(4, WORDS) for _ in range(LENGTH)]], first=2
    )
    keys = [stream_key(args.seed, "text")]

    def weigh(first: int, number: int) -> torch.Tensor:
        p, q = model.encode(batch), proposal.encode(batch)
        draws = proposal.sample(q, Streams(keys, number, first), number)
        return model.log_joint(p, draws.latents) - draws.log_q

    weigh(0, args.samples)  # fills the memo of alias encodings for both
    ratios, together, apart = [], [], []
    for _ in range(args.rounds):
        start = time.perf_counter()
        all_at_once = weigh(0, args.samples)
        together.append(time.perf_counter() - start)
        start = time.perf_counter()
        one_by_one = torch.cat([weigh(k, 1) for k in range(args.samples)], -1)
        apart.append(time.perf_counter() - start)
        ratios.append(apart[-1] / together[-1])
    torch.testing.assert_close(all_at_once, one_by_one, rtol=1e-5, atol=1e-3)
    print(
        f"{platform.processor() or platform.machine()}, 1 thread, "
        f"torch {torch.__version__}, seed {args.seed}, K = {args.samples}\n"
        f"together {statistics.median(together):.3f} s, one by one "
        f"{statistics.median(apart):.3f} s, ratio {statistics.median(ratios):.1f} "
        f"({min(ratios):.1f} to {max(ratios):.1f})"
    )


if __name__ == "__main__":
    main()
