"""Large graphs and long texts: the same numbers, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.kglm import modeling, network, scores, steps
from lm_latent_eval.models.kglm.latents import Walks
from lm_latent_eval.models.kglm.scores import EntityScores, NewEntities, Twist
from tests import large_graph, tiny_models
from tests.large_graph import NUM_WORDS
from tests.memory import measured, on_linux

EXACTLY = {"rtol": 0, "atol": 1e-10}


def in_small_groups(monkeypatch, size: int) -> None:
    """Let everything that is computed in groups be computed in groups this large."""
    for module in (scores, steps):
        monkeypatch.setattr(module, "AT_ONCE", size)
    monkeypatch.setattr(modeling, "TABLE", 40 * size)
    monkeypatch.setattr(network, "NUMBERS", size)


# -- the distribution of new entities -------------------------------------------------


@pytest.fixture(params=[False, True], ids=["plain", "twisted"])
def new(request) -> NewEntities:
    """Five positions over 30 entities, some of which may not be introduced."""
    generator = torch.Generator().manual_seed(0)
    graph = large_graph.graph(30, 60)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    table = EntityScores(normal(5, 4), normal(30, 4), normal(30), 1 + normal(5).abs())
    introducible = torch.arange(30) % 7 != 0
    twist = Twist.largest(
        torch.tensor([0, 0, 0, 2, 4, 4]),
        torch.tensor([3, 3, 14, 29, 1, 2]),
        torch.tensor([1.0, 2.5, 4.0, 0.5, 30.0, 29.0], dtype=torch.float64),
        num_positions=5,
        num_nodes=30,
    )
    return NewEntities(table, graph, introducible, twist if request.param else None)


def dense(new: NewEntities) -> tuple[torch.Tensor, torch.Tensor]:
    """log p_new (P, E) and log L (P,) by the definition, over whole tables."""
    s = new.scores
    table = s.scale[:, None] * (s.hidden @ s.weight.T + s.bias)
    log_plain = table.masked_fill(~new.introducible, -torch.inf).log_softmax(-1)
    twist = torch.zeros_like(table)
    if new.twist is not None:
        for position, node, b in [(0, 3, 2.5), (0, 14, 4), (2, 29, 0.5), (4, 1, 30)]:
            twist[position, node] = b
        twist[4, 2] = 29
    twisted = log_plain + twist
    return twisted.log_softmax(-1), twisted.logsumexp(-1)


@pytest.mark.parametrize("size", [1, 64, 1 << 22])
def test_new_entities_are_a_softmax(new, monkeypatch, size):
    """Listed, looked up, drawn by inversion, and the most probable ones."""
    in_small_groups(monkeypatch, size)
    wanted, lift = dense(new)
    torch.testing.assert_close(new.lift, lift, **EXACTLY)
    torch.testing.assert_close(new.log_probs(torch.arange(5)), wanted, **EXACTLY)
    position = torch.arange(5).repeat_interleave(30)
    pairs = new.log_prob(position, torch.arange(30).repeat(5))
    torch.testing.assert_close(pairs.view(5, 30), wanted, **EXACTLY)

    cdf = wanted.exp().cumsum(-1)
    u = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    position = torch.tensor([0, 1, 3, 4]).repeat_interleave(1000)
    drawn = new.sample(position, u.repeat(4))
    place = torch.searchsorted(cdf[[0, 1, 3, 4]], u.expand(4, -1).contiguous())
    clear = (cdf[position] - u.repeat(4)[:, None]).abs().amin(-1) > 1e-12
    assert clear.sum() > 3990, "premise"
    assert torch.equal(drawn[clear], place.flatten()[clear])

    best, order = wanted.sort(-1, descending=True)
    position = torch.tensor([4, 0, 4, 2])
    log_prob, entity = new.top(position, 6)
    torch.testing.assert_close(log_prob, best[position, :6], **EXACTLY)
    assert torch.equal(entity, order[position, :6])
    assert new.top(position, 99)[1].shape == (4, 30)


@pytest.mark.parametrize("best", [16.5, 23.5])
def test_new_entities_total_one_where_the_tilt_lists_nearly_all_mass(best):
    """In float32, where the rest of 2001 entities has 1e-4 or 1e-7 of the mass."""
    graph = large_graph.graph(2001, 4000)
    weight = torch.zeros(2001, 1)
    weight[5] = best
    twist = Twist.largest(
        torch.zeros(1).long(),
        torch.tensor([5]),
        torch.zeros(1),
        num_positions=1,
        num_nodes=2001,
    )
    twist = replace(twist, value=torch.tensor([-18.0, 0.0]))
    introducible = torch.arange(2001) != 0
    new = NewEntities(
        EntityScores(torch.ones(1, 1), weight), graph, introducible, twist
    )
    rest = 1999 * math.exp(-best)
    assert rest < 2e-4, "premise: little is left to what is not listed"
    lift = math.log((math.exp(-18) + rest) / (1 + rest))
    # Some numbers below 24 were rounded to float32 on the way.
    rounding = 4 * 24 * torch.finfo(torch.float32).eps
    assert abs(new.lift.item() - lift) < rounding
    everyone = torch.arange(2001)
    for log_p in (new.log_probs(everyone[:1])[0], new.log_prob(0 * everyone, everyone)):
        assert abs(log_p.double().logsumexp(0).item()) < rounding


def test_nobody_to_introduce(new):
    nobody = NewEntities(
        new.scores, new.graph, torch.zeros(30, dtype=torch.bool), new.twist
    )
    assert not nobody.possible
    assert (nobody.lift == 0).all()
    assert (nobody.log_probs(torch.arange(5)) == -torch.inf).all()


# -- the same numbers in groups -------------------------------------------------------


def numbers(kglm, which: str) -> dict[str, torch.Tensor]:
    """All that a model and its proposal say of two texts."""
    texts = [[4, 5, 1, 4, 3], [5, 5, 4]]
    keys = [stream_key(0, str(i)) for i in range(2)]
    batch, proposal = tiny_models.batch(texts), kglm.proposal(which, 1.3)
    p, q = kglm.encode(batch), proposal.encode(batch)
    draws, beam = proposal.sample(q, Streams(keys, 20), 20), proposal.beam(q, 9)
    read = ImportanceSampling(20).extend(
        kglm, proposal, batch.piece(0, 2), keys, [0, 0], Particles.begin(2, "cpu")
    )
    return {
        "draws": torch.stack(draws.latents),
        "beam": torch.stack(beam.latents),
        "log q": draws.log_q,
        "score of the beam": beam.score,
        "log p": kglm.log_joint(p, draws.latents),
        "log q of the draws": proposal.log_prob(q, draws.latents),
        "next token": read.ahead(kglm, batch.inputs[:, 2]).next_token(
            kglm, keys, [2, 2]
        ),
    }


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("which", ["adapted", "smoothing", "peeking", "prior"])
@pytest.mark.parametrize(
    "graph", [tiny_models.plain_graph, tiny_models.full_graph, None]
)
def test_groups_change_nothing(monkeypatch, graph, which, size):
    # In the last graph words of one name lead to several nodes, nodes to many others.
    chosen = graph() if graph else large_graph.graph(12, 90)
    if graph:
        kglm = tiny_models.kglm(chosen)
    else:
        kglm = large_graph.kglm(chosen, proposals=("smoothing", "peeking")).double()
        tiny_models.randomised(kglm, 0, 1.0)
    wanted = numbers(kglm, which)
    in_small_groups(monkeypatch, size)
    ours = numbers(kglm, which)
    for name, tensor in wanted.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(ours[name], tensor, **EXACTLY, msg=name)
        else:
            assert torch.equal(ours[name], tensor), name


# -- memory ---------------------------------------------------------------------------

SCORE = """
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.inference import importance, particles
from lm_latent_eval.models.kglm import modeling, network, scores, twisting
from lm_latent_eval.text.batch import TokenBatch
from tests import large_graph
scores.AT_ONCE = network.NUMBERS = modeling.TABLE = 1 << 20
twisting.MOST_PAIRS = 1 << 14
particles.PIECE = importance.PIECE = 64
kglm = large_graph.kglm(large_graph.graph(int(sys.argv[1]), 300_000))
def score(length):
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(4, large_graph.NUM_WORDS, (length,), generator=generator)
    batch = TokenBatch.collate([words.tolist()], first=2)
    method = ImportanceSampling(2)
    log_w = method.log_weights(kglm, kglm.proposal(), batch, [stream_key(0, "text")])
    assert log_w.isfinite().all()
    return memory("VmHWM")
score(3)  # loads and remembers what does not depend on the text
before = memory("VmHWM")
short = score(int(sys.argv[2]))
print(json.dumps({"short": short - before, "longer": score(int(sys.argv[3])) - short}))
"""


@on_linux
@pytest.mark.nightly
def test_memory_grows_neither_with_entities_nor_with_words():
    """A table of positions x entities would take four bytes each; there are several."""
    entities, short, long = 100_000, 130, 520
    peak = measured(SCORE, entities, short, long)
    assert peak["short"] < short * entities * 4
    assert peak["longer"] < (long - short) * entities * 2


def test_no_table_of_words_is_larger_than_said(monkeypatch):
    """Tokens x words and nodes x words, for walks that mention every node."""
    kglm = large_graph.kglm(large_graph.graph(60, 100)).double()
    tiny_models.randomised(kglm, 0, 1.0)
    generator = torch.Generator().manual_seed(2)
    shape = (3, 40, 5)
    node = torch.randint(60, shape, generator=generator)
    words_of = torch.randint(4, NUM_WORDS, (3, 5), generator=generator)
    batch = tiny_models.batch(words_of.tolist())
    encoded, walks = kglm.encode(batch), Walks(torch.zeros_like(node), node)
    whole, largest = kglm.log_words(encoded, walks), []

    def watched(name: str) -> None:
        found = getattr(network.Words, name)

        def watching(self, *arguments):
            result = found(self, *arguments)
            largest.append(result.numel())
            return result

        monkeypatch.setattr(network.Words, name, watching)

    for name in ("position_scores", "entity_scores", "encode_aliases"):
        watched(name)
    assert torch.equal(kglm.log_words(encoded, walks), whole)
    table = 10 * NUM_WORDS
    assert max(largest) > 2 * table, "premise: there is something to cut"
    largest.clear()
    monkeypatch.setattr(modeling, "TABLE", table)
    monkeypatch.setattr(network, "NUMBERS", table)
    torch.testing.assert_close(kglm.log_words(encoded, walks), whole, **EXACTLY)
    assert 0 < max(largest) <= table
