"""The twist of the smoothing proposal: what it is made of, and that it is one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.network import AliasMatching
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.models.kglm.steps import log_prob_walks
from tests import kglm_reference as reference
from tests.kglm_space import every_walk

ADA, BO, CY = 1, 2, 3


@pytest.fixture
def graph() -> KnowledgeGraph:
    return KnowledgeGraph.build(
        [("Ada", "knows", "Bo")],
        {"Ada": [[7, 8], [7]], "Bo": [[7, 8, 9]], "Cy": [[8]]},
        max_aliases=2,
        max_alias_words=3,
    )


def dense(twist: Twist, num_positions: int) -> torch.Tensor:
    position = torch.arange(num_positions)[:, None]
    return twist.at(position, torch.arange(twist.num_nodes).expand(num_positions, -1))


def test_names_speak_for_their_nodes(graph):
    matching = AliasMatching().double()
    matching.weight.data = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    text = torch.tensor([[7, 8, 5, 7], [8, 7, 8, 9]])
    twist = matching(text, torch.tensor([4, 3]), graph)
    expected = torch.zeros(2, 4, 4, dtype=torch.float64)
    expected[0, 0, ADA] = 111.0  # "7 8" stands there: whole, and one word longer
    expected[0, 0, BO] = 1.0  # "7 8 9" only begins like that
    expected[0, 1, CY] = 11.0
    expected[0, 3, ADA] = 11.0  # the end of the text cuts "7 8" off, "7" stands
    expected[0, 3, BO] = 1.0
    expected[1, 0, CY] = 11.0
    expected[1, 1, ADA] = 111.0
    expected[1, 1, BO] = 1.0  # the 9 is beyond the end
    expected[1, 2, CY] = 11.0
    assert torch.equal(dense(twist, 8).view(2, 4, 4), expected)
    row, node, value = twist.entries(torch.tensor([3, 0, 2]))
    assert row.tolist() == [0, 0, 1, 1]
    assert node.tolist() == [ADA, BO, ADA, BO]
    assert value.tolist() == [11.0, 1.0, 111.0, 1.0]


def test_the_weights_learn(graph):
    matching = AliasMatching()
    matching(torch.tensor([[7, 8, 9]]), torch.tensor([3]), graph).value.sum().backward()
    assert matching.weight.grad is not None
    # Begun: Ada and Bo at 0, Cy at 1; whole: all of them; longer: 1 + 2 words.
    assert matching.weight.grad.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("listed", [1.0, 0.5])
@pytest.mark.parametrize("model", ["A", "B"])
def test_a_tilted_walk_is_the_plain_one_times_the_tilt(model, listed, continues):
    """Token by token: p'(z_t | past) is p(z_t | past) e^b, normalised over z_t."""
    kglm = reference.model(model)
    encoded = kglm.proposal("peeking").encode(reference.batch([2, 4, 5, 3]))
    generator = torch.Generator().manual_seed(0)
    num_nodes = kglm.knowledge.num_nodes
    twist = torch.randn(3, num_nodes, generator=generator, dtype=torch.float64)
    others = torch.randn(3, generator=generator, dtype=torch.float64)
    some = torch.rand(3, num_nodes, generator=generator) < listed
    twist = torch.where(some, twist, others[:, None])
    (key,) = some.flatten().nonzero(as_tuple=True)
    sparse = Twist(
        torch.cat([key, torch.tensor([3 * num_nodes])]),
        torch.cat([twist.flatten()[key], twist.new_zeros(1)]),
        others,
        num_nodes,
        continues=continues,
    )
    twist[:, 0] = 0.0
    twisted = replace(encoded.walk, twist=sparse)
    walks = every_walk(kglm.knowledge, 3, kglm.config.cutoff, 4)
    history = encoded.history.expand(1, walks.node.shape[1], -1)
    plain, ours = (
        log_prob_walks(walk, history, walks, encoded.batch.length)[0]
        for walk in (encoded.walk, twisted)
    )
    assert abs(ours.sum(-1).logsumexp(0)) < 1e-10
    of_node = twist[torch.arange(3), walks.node[0]]
    kept = (walks.mention[0] == 3) & (not continues)
    weighted = plain + of_node.masked_fill(kept, 0.0)
    steps = torch.stack([walks.mention[0], walks.node[0]], -1).tolist()
    for t in range(3):
        choices: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
        for k, walk in enumerate(steps):
            here = (weighted[k, t].item(), ours[k, t].item())
            choices[str(walk[:t])][str(walk[t])] = here
        for options in choices.values():
            wanted, found = torch.tensor(list(options.values()), dtype=torch.float64).T
            torch.testing.assert_close(found, wanted.log_softmax(0), rtol=0, atol=1e-10)
