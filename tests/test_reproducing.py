"""The numbers of docs/reproducing.md: what the originals' errors are worth.

Weights and cases are those of ``tests/reference``. What other tests show already is
named in the page and not repeated here.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from lm_latent_eval.estimators import (
    corpus_weights,
    instance_perplexity,
    log_evidence,
)
from lm_latent_eval.models.entitynlm.network import Trunk
from lm_latent_eval.models.kglm.latents import Mention, Rows, Walks
from lm_latent_eval.models.kglm.steps import windows
from tests import kglm_reference
from tests.kglm_archives import FOLDER
from tests.kglm_space import walks_of
from tests.models.entitynlm import reference as entitynlm_reference
from tests.models.entitynlm.tiny import every_chain
from tests.models.kglm.test_golden import MASKED, encode
from tests.models.rnng import reference as rnng_reference

PRINTED = 5e-3
"""Half of the last digit that the page prints."""


def perplexity(log_p, num_tokens: int) -> float:
    return math.exp(-math.fsum(log_p) / num_tokens)


# -- levels --------------------------------------------------------------------------


def test_levels_of_a_simulated_corpus():
    """1,000 texts, K = 100, log-weights of standard deviation 1; the truth is 0 nats.

    Averages over 100 corpora, to their standard errors.
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(100):
        noise = torch.randn(1000, 100, generator=generator, dtype=torch.float64)
        log_w = noise - 0.5
        corpus = log_evidence(corpus_weights(log_w)) / len(log_w)
        found.append(torch.stack([log_evidence(log_w).mean(), corpus, log_w.mean()]))
    values = torch.stack(found)
    stderr = values.std(0) / math.sqrt(len(values))
    assert (stderr < 0.002).all(), "premise: the levels are far apart"
    printed = torch.tensor([-0.008, -0.425, -0.500], dtype=torch.float64)
    assert ((values.mean(0) - printed).abs() < 5e-4 + 5 * stderr).all()


# -- the perplexity command of the importance-sampling paper -------------------------

# What the original drew for three documents, 8 samples each, one a batch.
ORIGINAL_LOG_W = """
-34.939560 -29.554185 -26.058130 -26.058130 -30.384777 -30.384777 -36.756867 -29.554185
-37.981177 -33.962583 -26.127973 -36.265982 -37.597284 -37.597284 -26.127973 -38.609463
-71.751391 -64.883682 -70.923138 -66.254207 -66.254207 -69.601510 -58.969454 -71.751391
"""
ORIGINAL_LENGTHS = [5, 7, 10]


def test_what_the_original_command_printed():
    """Two slips of counting in one printed perplexity: 146.55 should be 447.28."""
    rows = [[float(w) for w in row.split()] for row in ORIGINAL_LOG_W.split("\n")[1:-1]]
    log_w = torch.tensor(rows, dtype=torch.float64)
    log_p_hat = log_evidence(log_w)
    samples_a_batch = 1
    too_high = math.log(log_w.shape[1] / samples_a_batch)
    counted, predicted = sum(ORIGINAL_LENGTHS), sum(n - 1 for n in ORIGINAL_LENGTHS)

    printed = instance_perplexity(log_p_hat + too_high, counted)
    right_number_of_samples = instance_perplexity(log_p_hat, counted)
    right = instance_perplexity(log_p_hat, predicted)

    assert abs(printed - 146.55118614238094) < 1e-3
    assert abs(right_number_of_samples - 194.60) < PRINTED
    assert abs(right - 447.28) < PRINTED


@pytest.mark.parametrize(
    ("name", "exact", "hundred", "first_token", "sampler"),
    [("A", 109.99, 34.78, 42.96, 99.06), ("B", 54.04, 19.42, 26.16, 39.49)],
)
def test_one_error_at_a_time_on_exact_documents(
    name, exact, hundred, first_token, sampler
):
    """EntityNLM: every chain is summed, so no number has a Monte Carlo error."""
    numbers = entitynlm_reference.numbers()
    model = entitynlm_reference.model(name)
    support = {
        tuple(case["tokens"]): case["log_px_over_sampler_support"]
        for case in numbers["sampler_support"]
        if case["model"] == name
    }
    documents = [c["tokens"] for c in numbers["exact"] if c["model"] == name]
    log_p = []
    for tokens in documents:
        chains = every_chain(len(tokens) - 1, model.config.max_mention_length)
        encoded = model.encode(entitynlm_reference.batch(tokens))
        log_p.append(model.log_joint(encoded, chains).logsumexp(-1).item())
    predicted = sum(len(tokens) - 1 for tokens in documents)
    sampled = [support[tuple(tokens)] for tokens in documents]

    too_high = [value + math.log(100) for value in log_p]
    assert abs(perplexity(log_p, predicted) - exact) < PRINTED
    assert abs(perplexity(too_high, predicted) - hundred) < PRINTED
    counted = predicted + len(documents)
    assert abs(perplexity(log_p, counted) - first_token) < PRINTED
    assert abs(perplexity(sampled, predicted) - sampler) < PRINTED


def test_noise_while_scoring_moves_log_p(monkeypatch):
    """The original adds normal noise of 1e-4 to every new slot; ours adds none."""
    whole = entitynlm_reference.numbers()["chunks"]
    model = entitynlm_reference.model(whole["model"])
    batch = entitynlm_reference.batch(whole["tokens"])
    chains = entitynlm_reference.chains(whole["z"])

    def log_p() -> float:
        return model.log_joint(model.encode(batch), chains).item()

    assert log_p() == log_p()
    generator = torch.Generator().manual_seed(0)

    def noisy(trunk: Trunk):
        row = trunk.mention.weight[1]
        noise = torch.randn(len(row), generator=generator, dtype=row.dtype)
        return F.normalize(row + 1e-4 * noise, dim=-1)

    monkeypatch.setattr(Trunk, "first_slot", property(noisy))
    again = [log_p() for _ in range(20)]
    # 20 runs of the original spread over 0.0037 nats.
    assert 0.001 < max(again) - min(again) < 0.01


# -- KGLM ---------------------------------------------------------------------------


def original_total(case) -> tuple[float, int]:
    """log p(x, z) as the original adds it up, and how many terms are its masks."""
    f, z = case["factors"], case["z"]
    terms = [*f["mention_type"], *f["word"]]
    for t, entity in enumerate(z["entity_ids"]):
        if entity != 0:  # on tokens that derive or continue a mention, too
            terms.append(f["new_entity_unmasked"][t])
        if any(z["parent_ids"][t]):  # on tokens that continue one, too
            pairs = zip(f["parent"][t], f["relation"][t], strict=True)
            reached = torch.tensor([sum(pair) for pair in pairs], dtype=torch.float64)
            terms.append(reached.logsumexp(0).item())
    return math.fsum(terms), sum(term < MASKED for term in terms)


@pytest.mark.parametrize(
    ("name", "original", "ours", "masks"),
    [
        ("A", 818292.90, 64206.98, 1),
        ("B", 20744.32, 7200.18, 0),
        ("C", 6.52193e10, 1067.76, 15),
    ],
)
def test_factors_charged_where_nothing_is_decided(name, original, ours, masks):
    """Ten annotated documents, 89 tokens: perplexity of x and z together."""
    kglm = kglm_reference.model(name, as_reader=True)
    cases = [
        case
        for case in kglm_reference.numbers()["cases"]
        if (case["model"], case["annotation"]) == (name, "gold")
    ]
    totals, masked = zip(*map(original_total, cases), strict=True)
    log_joint = [
        kglm.log_joint(encode(kglm, c), kglm_reference.walks(c["z"])).item()
        for c in cases
    ]
    assert sum(len(c["tokens"]) - 1 for c in cases) == 89
    assert perplexity(totals, 89) == pytest.approx(original, rel=1e-6)
    assert abs(perplexity(log_joint, 89) - ours) < PRINTED
    assert sum(masked) == masks


def test_factors_of_the_published_archive():
    """The same of the archive in the authors' repository; 12 terms are masks."""
    cases = json.loads((FOLDER / "archive.json").read_text())["cases"]
    totals, masked = zip(
        *(original_total({"factors": c["p"]["factors"], "z": c["z"]}) for c in cases),
        strict=True,
    )
    num_tokens = sum(len(case["tokens"]) - 1 for case in cases)
    clean = [case["p"]["logp_clean"] for case in cases]
    for case, total in zip(cases, totals, strict=True):
        assert abs(total - case["p"]["logp_as_implemented"]) < 1e-9
    assert (num_tokens, sum(masked)) == (181, 12)
    assert perplexity(totals, num_tokens) == pytest.approx(1237952, rel=1e-6)
    assert abs(perplexity(clean, num_tokens) - 806.26) < PRINTED


def charged(kglm, tokens, walks: Walks, *, copies: bool) -> torch.Tensor:
    """log p of walks over two tokens as the original adds it up, (K,)."""
    encoded = kglm.encode(kglm_reference.batch(tokens))
    mention, node = walks.mention[0], walks.node[0]
    behind = windows(encoded.history.expand(1, len(node), -1), walks.node)[0]
    total = torch.zeros(len(node), dtype=torch.float64)
    for t in range(node.shape[1]):
        rows = Rows(torch.full((len(node),), t), behind[:, t])
        step, to = mention[:, t], node[:, t]
        entity = kglm.knowledge.entity_of[to]
        total += encoded.walk.log_mention(rows).gather(1, step[:, None])[:, 0]
        new = encoded.walk.new.log_prob(rows.position, entity)
        total += torch.where(to != 0, new, 0.0)
        derived = encoded.walk.log_derived(rows, to)
        if_parents = (step == Mention.DERIVED) & (rows.previous != 0)
        total += torch.where(if_parents, derived, 0.0)
        paths = kglm_reference.word_paths(kglm, encoded, rows.position, to)
        total += torch.logaddexp(*paths) if copies else paths[0]
    return total


def drawn_by_the_original(kglm) -> Walks:
    """Every z over two tokens that KglmDisc can draw alone in its batch.

    Continuations name nobody, and neither does what has nothing to be derived from.
    """
    graph = kglm.knowledge
    tails: dict[int, list[int]] = {}
    for key in graph.edge_key.unique().tolist():
        head, tail = divmod(key, graph.num_nodes)
        tails.setdefault(head, []).append(tail)
    first = range(kglm_reference.SPECIAL_ENTITIES, kglm.config.num_entities)
    new = [(Mention.NEW, int(graph.node_of_entity[entity])) for entity in first]
    always = [(Mention.NONE, 0), (Mention.CONTINUE, 0), *new]
    found = [
        (one, two)
        for one in [*always, (Mention.DERIVED, 0)]
        for two in [*always, *((Mention.DERIVED, n) for n in tails.get(one[1], [0]))]
    ]
    listed = torch.tensor(found)[None]
    return Walks(listed[..., 0], listed[..., 1])


@pytest.mark.parametrize(
    ("name", "exact", "factors", "sampler"),
    [("A", -10.237, -12.148, -10.719), ("B", -11.489, -12.783, -11.274)],
)
def test_what_the_original_kglm_converges_to(name, exact, factors, sampler):
    """One text of two tokens, summed over every walk."""
    kglm, tokens = kglm_reference.model(name), [2, 4, 3]
    walks = walks_of(kglm, 2)
    ours = kglm.log_joint(kglm.encode(kglm_reference.batch(tokens)), walks)
    as_charged = charged(kglm, tokens, walks, copies=True)
    drawn = drawn_by_the_original(kglm)
    as_drawn = charged(kglm, tokens, drawn, copies=False)

    assert drawn.node.shape[1] == 131
    assert abs(ours.logsumexp(-1).item() - exact) < PRINTED / 10
    assert abs(as_charged.logsumexp(-1).item() - factors) < PRINTED / 10
    assert abs(as_drawn.logsumexp(-1).item() - sampler) < PRINTED / 10


def test_a_checkpoint_must_be_read_as_it_was_trained():
    """Copy scores of an original transposed as meant: other numbers, not better."""
    kglm, tokens = kglm_reference.model("A"), [2, 4, 5, 3]
    other = deepcopy(kglm)
    other.generative.words.config = deepcopy(kglm.config)
    other.generative.words.config.copy_scores = "transposed"
    walks = walks_of(kglm, 3)
    batch = kglm_reference.batch(tokens)
    trained, meant = (
        model.log_joint(model.encode(batch), walks).logsumexp(-1).item()
        for model in (kglm, other)
    )
    assert abs(trained - -16.851) < PRINTED / 10
    assert abs(meant - -17.143) < PRINTED / 10


# -- RNNG ----------------------------------------------------------------------------


def short_sentences(ends: str, temperature: float = 2.0):
    """log p(x, z) and log q(z) of every tree of the 11 sentences up to seven words."""
    rnng = rnng_reference.model("A", ends)
    proposal = rnng.proposal("crf", temperature)
    for sentence in rnng_reference.sentences("A"):
        if sentence["n"] <= 7:
            batch = rnng_reference.batch([sentence["ids"]], ends)
            every = rnng_reference.every_tree(sentence["n"])
            trees = rnng_reference.trees([every], ends)
            log_p = rnng.log_joint(rnng.encode(batch), trees)[0]
            log_q = proposal.log_prob(proposal.encode(batch), trees)[0]
            yield sentence["n"] + (ends == "eos"), log_p, log_q


def test_sentence_ends_and_the_evidence_lower_bound():
    """Exact perplexities of one model on the same sentences."""
    found = {}
    for ends in rnng_reference.ENDS:
        words, log_p, log_q = zip(*short_sentences(ends), strict=True)
        exact = [p.logsumexp(0).item() for p in log_p]
        elbo = [
            (q.exp() * (p - q)).sum().item() for p, q in zip(log_p, log_q, strict=True)
        ]
        found[ends] = perplexity(exact, sum(words)), perplexity(elbo, sum(words))
    assert abs(found["no_eos"][0] - 17.15) < PRINTED
    assert abs(found["eos"][0] - 16.56) < PRINTED
    assert abs(found["no_eos"][1] - 26.48) < PRINTED


def test_fifty_samples_where_99_were_asked_for():
    """Fewer samples, a higher perplexity: averages over replicates."""
    replicates, generator = 10_000, torch.Generator().manual_seed(0)
    totals = {k: torch.zeros(replicates, dtype=torch.float64) for k in (50, 99)}
    num_words = 0
    for words, log_p, log_q in short_sentences("no_eos"):
        drawn = torch.multinomial(
            log_q.exp().expand(replicates, -1), 99, True, generator=generator
        )
        log_w = (log_p - log_q)[drawn]
        for num_samples, total in totals.items():
            total += log_evidence(log_w[:, :num_samples])
        num_words += words
    nats = {k: -total / num_words for k, total in totals.items()}
    for num_samples, printed in ((50, 17.27), (99, 17.21)):
        found = nats[num_samples].mean().exp().item()
        stderr = found * nats[num_samples].std().item() / math.sqrt(replicates)
        assert stderr < 0.004, "premise: the difference would show"
        assert abs(found - printed) < PRINTED + 5 * stderr
    more = nats[50] - nats[99]
    assert more.mean() > 10 * more.std() / math.sqrt(replicates)
