"""What only a KGLM owes: possible walks, its normaliser, shared and bounded work."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lm_latent_eval import testing
from lm_latent_eval.models.kglm import joint, network, scores
from lm_latent_eval.models.kglm.choices import key_after, pasts, window_key
from lm_latent_eval.models.kglm.latents import Rows, Walks
from lm_latent_eval.models.kglm.network import log_sum_product
from lm_latent_eval.models.kglm.scores import EntityScores, NewEntities, Twist
from lm_latent_eval.testing.model_laws import numbers_of
from tests import large_graph, tiny_models
from tests.kglm_space import walks_of
from tests.large_graph import NUM_WORDS
from tests.means import normal
from tests.memory import measured, on_linux
from tests.tiny_models import COPIED, KNOWN
from tests.watching import watch

GRAPHS = {"plain": tiny_models.plain_graph, "full": tiny_models.full_graph}
EXACTLY = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module", params=GRAPHS)
def kglm(request):
    return tiny_models.kglm(GRAPHS[request.param]())


def test_what_cannot_happen_has_probability_zero(kglm):
    batch, proposal = tiny_models.batch([[KNOWN, KNOWN]]), kglm.proposal()
    encoded, read = kglm.encode(batch), proposal.encode(batch)
    bo = list(kglm.knowledge.node_names).index("Bo")
    impossible = [
        ((3, 0), (1, 0)),  # nothing to continue
        ((2, 0), (1, 0)),  # nothing to derive from
        ((1, 3), (1, bo)),  # a continuation changes its node
        ((0, 0), (1, 0)),  # nothing, by name
        ((1, 0), (0, 0)),  # nobody is introduced
    ]
    for mention, node in impossible:
        walk = Walks(torch.tensor(mention)[None, None], torch.tensor(node)[None, None])
        with torch.no_grad():
            assert kglm.log_joint(encoded, walk).item() == -torch.inf
        assert kglm.log_joint(encoded, walk).item() == -torch.inf
        assert proposal.log_prob(read, walk).item() == -torch.inf


@pytest.mark.parametrize("only_possible", [True, False])
def test_walks_have_the_same_log_p_with_and_without_gradients(kglm, only_possible):
    """By torch, and by tables: of every walk after others, and of a shorter text."""
    model, length = copy.deepcopy(kglm), 3
    model.config.only_possible = only_possible
    before, batch = tiny_models.batch([[KNOWN] * 2] * 2), [[KNOWN, COPIED, KNOWN]]
    batch = tiny_models.batch([*batch, [COPIED, KNOWN]])
    first, every = (
        Walks(*(part.expand(2, -1, -1) for part in walks_of(model, n)))
        for n in (2, length)
    )
    index = torch.arange(every.node.shape[1]) % first.node.shape[1]
    after = model.advance(model.encode(before), first).resample(index.expand(2, -1))
    encoded = model.encode(batch, after)
    with torch.no_grad():
        found = model.log_joint(encoded, every)
    torch.testing.assert_close(found, model.log_joint(encoded, every), **EXACTLY)
    assert found.isfinite().any()


@pytest.mark.parametrize("assign", [False, True])
def test_scores_follow_the_weights(kglm, assign):
    """What a model remembers between calls belongs to its weights of that time."""
    model = copy.deepcopy(kglm)
    other = tiny_models.randomised(copy.deepcopy(kglm), 1, 1.0)
    text, walks = tiny_models.batch([[KNOWN, COPIED, KNOWN]]), walks_of(model, 3)

    def log_p(of):
        return of.log_joint(of.encode(text), walks)

    with torch.enable_grad():  # nothing is remembered then
        before, wanted = log_p(model), log_p(other)
    assert not torch.allclose(before, wanted), "premise"
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(log_p(model), before, **EXACTLY)
        weights = {name: weight.clone() for name, weight in other.state_dict().items()}
        model.load_state_dict(weights, assign=assign)
        torch.testing.assert_close(log_p(model), wanted, **EXACTLY)
        for weight in model.parameters():
            weight.data.mul_(0.5)
        found = log_p(model.eval())  # nothing else tells of what ``data`` writes
    with torch.enable_grad():
        torch.testing.assert_close(found, log_p(model), **EXACTLY)


# -- the normaliser -----------------------------------------------------------------


def direct(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    return (a.double()[:, None] + b.double()[None]).logsumexp(-1)


def all_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The code under test for every pair of rows of one text."""
    pairs = torch.cartesian_prod(torch.arange(len(a)), torch.arange(len(b)))
    return log_sum_product(a[None], b, *pairs.T).view(len(a), len(b))


def test_peaks_far_apart_do_not_underflow():
    """In float32 every product of exponentials of a pair can be zero, or subnormal."""
    places = torch.arange(12.0)
    for gap in (5.0, 20.0, 44.0, 60.0, 88.0, 100.0, 150.0, 1e4):
        a = -gap * (places - 1).abs()[None]
        b = -gap * (places - 10).abs()[None] - 3
        a[0, 0] = -torch.inf
        torch.testing.assert_close(
            all_pairs(a, b).double(), direct(a, b), rtol=1e-6, atol=1e-4
        )


def test_the_normaliser_has_the_gradients_of_its_definition():
    a, b = normal(3, 6, seed=0, sd=2.0), normal(4, 6, seed=1, sd=2.0)
    a[0] = torch.tensor([0.0] + [-900.0] * 5)
    b[0] = torch.tensor([-900.0] * 5 + [0.0])  # this pair underflows
    a[:, 2] = -torch.inf
    weight = normal(3, 4, seed=2)
    gradients = []
    for function in (all_pairs, direct):
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        (function(*leaves) * weight).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)


def test_keys_tell_apart_what_goes_on_apart(kglm):
    """Walks go on alike if they remember the same entities, each as long."""
    dice = np.random.default_rng(0)
    encoded = kglm.proposal("adapted").encode(tiny_models.batch([[KNOWN] * 3]))
    [tables] = encoded.tables.tables
    size, cutoff = tables.word.shape[1], kglm.config.cutoff
    windows = dice.integers(0, size, (300, cutoff))
    windows[windows == tables.other] = 0
    of = pasts(tables, windows, np.zeros(300, np.int64))
    remembered = {
        (row[-1], frozenset({s: place for place, s in enumerate(row) if s}.items()))
        for row in windows.tolist()
    }
    assert len(of.window) == len(remembered) < 300
    states = dice.integers(0, tables.other, 300)
    after = np.concatenate([windows[:, 1:], states[:, None]], 1)
    key = [
        key_after(tables.code, of.after[d], of.window[d], s)
        for d, s in zip(of.which, states, strict=True)
    ]
    seen = np.full(size, -1)
    assert key == [window_key(tables.code, row, seen, k) for k, row in enumerate(after)]
    # What has one key has one distribution of the next step.
    kinds, first, which = np.unique(key, return_index=True, return_inverse=True)
    assert 1 < len(kinds) < 300
    node = torch.from_numpy(tables.node)
    position = torch.ones(300, dtype=torch.long)
    rows = Rows(position, node[torch.from_numpy(after)])
    one = Rows(position, rows.window[torch.from_numpy(first[which])])
    steps = encoded.walk.log_mention(rows), encoded.walk.log_mention(one)
    torch.testing.assert_close(*steps, **EXACTLY)
    for mentioned in range(1, kglm.knowledge.num_nodes):
        to = torch.full_like(position, mentioned)
        derived = (encoded.walk.log_derived(some, to) for some in (rows, one))
        torch.testing.assert_close(*derived, **EXACTLY)


# -- the distribution of new entities -------------------------------------------------


@pytest.mark.parametrize("best", [16.5, 23.5])
def test_new_entities_total_one_where_the_twist_lists_nearly_all_mass(best):
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


@pytest.mark.parametrize("which", ["adapted", "smoothing", "peeking", "prior"])
def test_groups_change_nothing(monkeypatch, which):
    """Where words of one name lead to several nodes, and nodes to many others."""
    graph = large_graph.graph(12, 90)
    kglm = large_graph.kglm(graph, proposals=("smoothing", "peeking")).double()
    tiny_models.randomised(kglm, 0, 1.0)
    case = testing.Case(kglm, lambda text: None, (1, KNOWN, COPIED), (), copied=COPIED)
    wanted = numbers_of(case, which)
    monkeypatch.setattr(scores, "AT_ONCE", 1)
    monkeypatch.setattr(joint, "AT_ONCE", 40)
    monkeypatch.setattr(network, "NUMBERS", 1)
    for name, tensor in numbers_of(case, which).items():
        torch.testing.assert_close(tensor, wanted[name], **EXACTLY, msg=name)


# -- memory ---------------------------------------------------------------------------

SCORE = """
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.inference import importance, particles
from lm_latent_eval.models.kglm import candidates, joint, network, scores
from lm_latent_eval.text.batch import TokenBatch
from tests import large_graph
scores.AT_ONCE = network.NUMBERS = joint.AT_ONCE = 1 << 20
candidates.MOST_PAIRS = 1 << 14
particles.PIECE = importance.PIECE = 64
kglm = large_graph.kglm(large_graph.graph(int(sys.argv[1]), 300_000))
def score(length):
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(4, large_graph.NUM_WORDS, (length,), generator=generator)
    batch = TokenBatch.collate([words.tolist()], first=2)
    method = ImportanceSampling(2)
    keys = [stream_key(0, "text")]
    log_w = method.log_weights(Texts(kglm, kglm.proposal(), batch, keys))
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
    largest: list[int] = []
    for name in ("position_scores", "entity_scores", "encode_aliases"):
        watch(monkeypatch, network.Words, name, lambda x, *_: x.numel(), largest)
    whole, table = kglm.log_words(encoded, walks), 10 * NUM_WORDS
    assert max(largest) > 2 * table, "premise: there is something to cut"
    largest.clear()
    monkeypatch.setattr(joint, "AT_ONCE", table)
    monkeypatch.setattr(network, "NUMBERS", table)
    torch.testing.assert_close(kglm.log_words(encoded, walks), whole, **EXACTLY)
    assert 0 < max(largest) <= table
