"""KGLM and its proposals against the numbers of the original implementation."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lm_latent_eval.models.kglm.encoding import Encoded
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import Mention, Rows
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.kglm.steps import windows
from tests import kglm_reference as reference
from tests.kglm_space import walks_of

CASES = reference.numbers()["cases"]
Q_CASES = reference.numbers()["q_cases"]
EXACT = reference.numbers()["exact"]
PENALTY = -math.log(reference.numbers()["num_unknown_types"])
"""What an unknown word costs."""
TOLERANCE = 1e-6
MASKED = -90.0
"""Below this the originals' numbers are mask constants; ours are -inf there."""


def assert_same(ours: Tensor, golden: list) -> None:  # type: ignore[type-arg]
    """Every entry within the tolerance, or -inf where the original is masked."""
    wanted = torch.tensor(golden, dtype=torch.float64)
    wanted = wanted.masked_fill(wanted < MASKED, -torch.inf)
    assert ours.shape == wanted.shape
    torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE)


def over_shortlist(encoded: Encoded, shortlist: list[int]) -> Encoded:
    """Let new mentions name only some rows of the entity table.

    Original models with a shortlist are told which entities a text will mention.
    """
    listed = torch.zeros_like(encoded.walk.introducible)
    listed[shortlist] = True
    listed[NO_ENTITY] = False
    return replace(encoded, walk=replace(encoded.walk, introducible=listed))


def encode(kglm: KGLM, case: dict, penalty: float = 0.0) -> Encoded:  # type: ignore[type-arg]
    """Encode a case, over its own shortlist of new entities if it has one."""
    encoded = kglm.encode(reference.batch(case["tokens"], penalty=penalty))
    shortlist = case["shortlist"]
    return encoded if shortlist is None else over_shortlist(encoded, shortlist)


def rows_of(encoded: Encoded, z: dict) -> Rows:  # type: ignore[type-arg]
    """Every token of an annotated document, after what the annotation says."""
    node = reference.walks(z).node
    return Rows(torch.arange(node.shape[-1]), windows(encoded.history, node)[0, 0])


def parent_factors(encoded: Encoded, z: dict) -> tuple[Tensor, Tensor]:  # type: ignore[type-arg]
    """log p(parent) and log p(edge to the node | parent) of the listed parents."""
    node, rows = reference.walks(z).node[0, 0], rows_of(encoded, z)
    width = max(len(p) for p in z["parent_ids"])
    parents, edges = [], []
    for t, listed in enumerate(z["parent_ids"]):
        here = rows.pick(torch.tensor([t]))
        _, entity, log_parent, _ = encoded.walk.parents(here)
        for parent in listed + [0] * (width - len(listed)):
            parents.append(log_parent[entity == parent].logsumexp(0))
            at = here.position, torch.tensor([parent]), node[t : t + 1]
            edges.append(encoded.walk.edges.log_prob(*at)[0])
    shape = (len(z["parent_ids"]), width)
    return torch.stack(parents).view(shape), torch.stack(edges).view(shape)


def same_but_padded(ours: Tensor, golden: list[list[float]]) -> None:
    width = max(len(row) for row in golden)
    for row, wanted in zip(ours, golden, strict=True):
        assert_same(row[: len(wanted)], wanted)
    assert ours.shape[1] >= width


def assert_factors(kglm: KGLM, encodings: tuple[Encoded, Encoded], case, golden):  # type: ignore[no-untyped-def]
    """Compare every factor of an annotated document, of plain and priced words."""
    (encoded, penalized), z = encodings, case["z"]
    annotated = reference.walks(z)
    mentions, rows = annotated.mention[0, 0], rows_of(encoded, z)
    position = rows.position
    assert_same(
        encoded.walk.log_mention(rows)[position, mentions], golden["mention_type"]
    )
    entity = torch.tensor(z["entity_ids"])
    if case["shortlist"] is not None:  # looked up only for the tokens of new mentions
        entity = torch.tensor(case["shortlist"])[z["shortlist_inds"]]
    new = encoded.walk.new.log_prob(position, entity)
    assert_same(new, golden["new_entity_unmasked"])
    parent, edge = parent_factors(encoded, z)
    same_but_padded(parent, golden["parent"])
    same_but_padded(edge, golden["relation"])
    paths = reference.word_paths(kglm, encoded, position, annotated.node[0, 0])
    for path, which in zip(paths, ("word_gen", "word_copy"), strict=True):
        assert_same(path, golden[which])
    assert_same(kglm.log_words(encoded, annotated)[0, 0], golden["word"])
    priced = kglm.log_words(penalized, annotated)[0, 0]
    assert_same(priced, golden["word_penalized"])


def charged(kglm: KGLM, encoded: Encoded, z: dict) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[type-arg]
    """What the original charges a token: all but parents; of those listed; of all."""
    annotated = reference.walks(z)
    mention, node = annotated.mention[0, 0], annotated.node[0, 0]
    rows = rows_of(encoded, z)
    new = encoded.walk.new.log_prob(rows.position, torch.tensor(z["entity_ids"]))
    rest: Tensor = (
        encoded.walk.log_mention(rows).gather(1, mention[:, None])[:, 0]
        + torch.where(mention == Mention.NEW, new, 0.0)
        + kglm.log_words(encoded, annotated)[0, 0]
    )
    derived = mention == Mention.DERIVED
    no_parent = torch.tensor([p == [0] for p in z["parent_ids"]])
    listed = sum(parent_factors(encoded, z)).logsumexp(-1)
    every = encoded.walk.log_derived(rows, node)
    return (
        rest,
        torch.where(derived & ~no_parent, listed, 0.0),
        torch.where(derived, every, 0.0),
    )


@pytest.mark.parametrize("case", CASES)
def test_every_factor_of_p(case):
    kglm = reference.model(case["model"], as_reader=True)
    encodings = encode(kglm, case), encode(kglm, case, PENALTY)
    assert_factors(kglm, encodings, case, case["factors"])


@pytest.mark.parametrize("case", CASES)
def test_logp_clean(case):
    """The sum of what each token is charged, and ours with all parents."""
    kglm, z = reference.model(case["model"], as_reader=True), case["z"]
    encoded = encode(kglm, case)
    rest, listed, every = charged(kglm, encoded, z)
    assert abs((rest + listed).sum().item() - case["logp_clean"]) < TOLERANCE
    listed_once = [p != [0] and len(set(p)) == len(p) for p in z["parent_ids"]]
    more = (every >= listed - 1e-12)[torch.tensor(listed_once)]
    assert more.all(), "a sum over all parents is larger"
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            ours = kglm.log_joint(encoded, reference.walks(z))[0, 0]
        torch.testing.assert_close(ours, (rest + every).sum(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("which", ["peeking", "nonpeeking"])
@pytest.mark.parametrize("case", Q_CASES)
def test_every_factor_of_q(case, which):
    kglm = reference.model(case["model"], as_reader=True)
    proposal = kglm.proposal(which)
    encoded = proposal.encode(reference.batch(case["tokens"]))
    # The original's factors are over all choices, possible or not.
    everything = replace(
        encoded.walk,
        only_possible=False,
        introducible=torch.ones(kglm.config.num_entities, dtype=torch.bool),
    )
    z, golden = case["z"], case[which]["factors"]
    rows, entity = rows_of(encoded, z), torch.tensor(z["entity_ids"])
    position = rows.position
    mention = everything.log_mention(rows)[position, z["mention_type"]]
    assert_same(mention, golden["mention_type"])
    assert_same(
        everything.new.log_prob(position, entity),
        golden["new_entity_full_softmax_every_position"],
    )
    for t, restricted in enumerate(golden["new_entity_restricted"]):
        if restricted is not None:
            here = encoded.walk.new.log_prob(position[t : t + 1], entity[t : t + 1])
            assert_same(here, [restricted])
    parent, edge = parent_factors(replace(encoded, walk=everything), z)
    same_but_padded(parent, golden["parent"])
    same_but_padded(edge, golden["relation"])


# -- sums over every walk -------------------------------------------------------------


def of_every_walk(case, penalty=0.0):
    """Every walk of a text, and log p of each with it."""
    kglm, tokens = reference.model(case["model"]), case["tokens"]
    walks = walks_of(kglm, len(tokens) - 1)
    encoded = kglm.encode(reference.batch(tokens, penalty=penalty))
    return walks, kglm.log_joint(encoded, walks)[0]


@pytest.mark.parametrize("case", EXACT)
def test_sum_over_every_walk(case):
    for penalty, name in ((0.0, "log_px_clean"), (PENALTY, "log_px_clean_penalized")):
        _, log_p = of_every_walk(case, penalty)
        assert abs(log_p.logsumexp(-1).item() - case[name]) < TOLERANCE


@pytest.mark.parametrize("case", [c for c in EXACT if c["all"]])
def test_every_walk_of_the_original(case):
    """Ours is the original's, summed over the parents of the same walk."""
    walks, log_p = of_every_walk(case)
    golden = defaultdict(list)
    for entry in case["all"]:
        golden[tuple(entry["m"]), tuple(entry["raw"])].append(entry["clean"])
    for k, ours in enumerate(log_p):
        key = tuple(walks.mention[0, k].tolist()), tuple(walks.node[0, k].tolist())
        wanted = torch.tensor(golden.pop(key), dtype=torch.float64).logsumexp(0)
        assert abs(ours - wanted) < TOLERANCE
    assert not golden, "we miss walks that the original has"
