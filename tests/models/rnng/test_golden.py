"""RNNG and its CRF against the numbers of the original implementation."""

import math

import numpy as np
import pytest
import torch

from lm_latent_eval.models.rnng import crf
from lm_latent_eval.models.rnng.trees import REDUCE
from tests.models.rnng import reference

CASES = [(name, ends) for name in "ABC" for ends in reference.ENDS]
both = pytest.mark.parametrize(("name", "ends"), CASES)
every_model = pytest.mark.parametrize("name", "ABC")


def near(ours, golden, name):
    golden = torch.as_tensor(golden, dtype=torch.float64)
    assert ours.shape == golden.shape
    torch.testing.assert_close(
        ours, golden, rtol=0, atol=reference.TOLERANCE[name], check_dtype=False
    )


def read(name, temperature="1.0"):
    """Sentences, without ends, as the proposal reads them."""
    sentences = reference.sentences(name)
    proposal = reference.model(name, "no_eos").proposal("crf", float(temperature))
    batch = reference.batch([s["ids"] for s in sentences], "no_eos")
    return sentences, proposal, proposal.encode(batch)


@every_model
def test_every_span_score(name):
    sentences, _, encoded = read(name)
    for ours, s in zip(encoded.scores, sentences, strict=True):
        golden = torch.tensor(s["q"]["scores"], dtype=torch.float64)
        near(ours[: s["n"], : s["n"]].triu(), golden.triu(), name)


@pytest.mark.parametrize("temperature", reference.TEMPERATURES)
@every_model
def test_partition_function_and_entropy(name, temperature):
    sentences, _, encoded = read(name, temperature)
    by_temp = [s["q"]["by_temp"][temperature] for s in sentences]
    near(encoded.log_z, [t["log_Z"] for t in by_temp], name)
    near(encoded.entropy, [t["entropy"] for t in by_temp], name)


@every_model
def test_viterbi(name):
    sentences, proposal, encoded = read(name)
    beam = proposal.beam(encoded, 1)
    viterbi = [s["q"]["viterbi"] for s in sentences]
    near(beam.score[:, 0] + encoded.log_z, [v["score"] for v in viterbi], name)
    best = [[v["actions"]] for v in viterbi]
    assert all(map(torch.equal, beam.latents, reference.trees(best, "no_eos")))


@both
def test_every_tree_of_every_sentence(name, ends):
    rnng = reference.model(name, ends)
    for s in reference.sentences(name):
        listed = reference.trees([[t["actions"] for t in s["trees"]]], ends)
        batch = reference.batch([s["ids"]], ends)
        ours = rnng.log_joint(rnng.encode(batch), listed)[0]
        near(ours, [t[ends]["log_joint"] for t in s["trees"]], name)
        for temperature in reference.TEMPERATURES:
            proposal = rnng.proposal("crf", float(temperature))
            ours = proposal.log_prob(proposal.encode(batch), listed)[0]
            near(ours, [t["log_q"][temperature] for t in s["trees"]], name)


@both
def test_every_action_and_every_word(name, ends):
    """Sentence 8 to 12, all trees, factor by factor."""
    rnng = reference.model(name, ends)
    model = rnng.generative
    for s in reference.sentences(name)[:13]:
        encoded = rnng.encode(reference.batch([s["ids"]], ends))
        for tree in s["trees"]:
            trees = reference.trees([[tree["actions"]]], ends)
            sequence = rnng._moves(encoded, trees)[0, 0].numpy()
            golden = tree[ends]
            words = iter(golden["word_log_probs"])
            wanted = [
                action + (next(words) if kind == 0 else 0.0)
                for action, kind in zip(
                    golden["action_log_probs"], golden["actions"], strict=True
                )
            ]
            stacks, row, factors = model.begin(), np.array([0]), []
            for move in sequence[:, None]:
                top = stacks.top(row)
                size = torch.from_numpy(stacks.size[row])
                log_shift, log_reduce = model.log_actions(top, size)
                if move < 0:
                    factors.append(log_reduce[0])
                else:
                    log_word = model.log_word(top, size, torch.from_numpy(move))
                    factors.append((log_shift + log_word)[0])
                stacks, path = model.moved(stacks, row, move[None])
                row = path[:, 1]
            near(torch.stack(factors), wanted, name)


def test_stacks_are_looked_up_in_any_order():
    """Though those that were added together lie together."""
    model = reference.tiny().generative
    stacks, path = model.moved(model.begin(), np.array([0]), np.array([[4, 5, REDUCE]]))
    stacks, _ = model.moved(stacks, path[0, 2:], np.array([[5], [4]]))
    row = np.array([5, 0, 3, 5, 1, 4, 2])
    assert len(stacks.states) == 3, "premise"
    torch.testing.assert_close(stacks.state(row), torch.cat(stacks.states)[row])


@both
def test_replayed_samples(name, ends):
    """Trees that the original drew, all sentences in one batch."""
    rnng = reference.model(name, ends)
    sentences = reference.sentences(name)
    batch = reference.batch([s["ids"] for s in sentences], ends)
    golden = [s["replay"][ends] for s in sentences]
    extra = len([0, 1]) if ends == "eos" else 0
    actions = [[a[: len(a) - extra] for a in g["actions"]] for g in golden]
    drawn = reference.trees(actions, ends)
    proposal = rnng.proposal("crf", 2.0)
    log_q = proposal.log_prob(proposal.encode(batch), drawn)
    log_p = rnng.log_joint(rnng.encode(batch), drawn)
    near(log_q, [g["log_q"] for g in golden], name)
    near(log_p - log_q, [g["log_weights"] for g in golden], name)
    iwae = (log_p - log_q).logsumexp(-1) - math.log(log_p.shape[1])
    near(iwae, [g["iwae"] for g in golden], name)


@both
def test_sums_over_every_tree(name, ends):
    """The original's enumeration, and ours of up to 4862 trees."""
    rnng = reference.model(name, ends)
    for s in reference.sentences(name):
        encoded = rnng.encode(reference.batch([s["ids"]], ends))
        if "exact" in s:
            listed = [[int(a) for a in actions] for actions in s["exact"]["actions"]]
            ours = rnng.log_joint(encoded, reference.trees([listed], ends))[0]
            near(ours, s["exact"][ends]["log_joint"], name)
            near(ours.logsumexp(0), s["exact"][ends]["log_p_x"], name)
        if "exact_logp_only" in s:
            listed = reference.every_tree(s["n"])
            assert len(listed) == crf.num_trees(s["n"])
            ours = rnng.log_joint(encoded, reference.trees([listed], ends))[0]
            golden = s["exact_logp_only"][ends]
            near(ours.logsumexp(0), golden["log_p_x"], name)
            near(ours.max(), golden["best_joint"], name)
