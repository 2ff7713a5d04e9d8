"""What models of one step say is held against what they declare, and shared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lm_latent_eval.estimators import Bound, Estimate, MissedSupportError
from lm_latent_eval.inference import Estimator, consistency
from lm_latent_eval.inference.beam import Exact
from lm_latent_eval.inference.consistency import BrokenModelError
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.step_checks import check_steps
from lm_latent_eval.testing import Case, LawError, laws
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END
from tests.tiny_steps import NUM_STATES, TinyHMM, log_p, scored, tiny

TEXT = [4, 5, 1, 4]
BATCH = TokenBatch.collate([TEXT, TEXT[:2]], first=2)


class Leaky(TinyHMM):
    """Loses a tenth of what its prior has."""

    def step(self, read, state, t):
        said = super().step(read, state, t)
        return said._replace(log_prior=said.log_prior + math.log(0.9))


class SaysSo(Leaky):
    normalization = Normalization.BELOW_ONE


class SaysSoOfWords(SaysSo):
    def log_words(self, read, state):
        return super().log_words(read, state) + math.log(0.9)


class OtherWords(TinyHMM):
    """Predicts by the states in another order."""

    def log_words(self, read, state):
        emissions = self.emissions.log_softmax(-1).flip(0)
        log_z = self.transitions.log_softmax(-1)[state[0]]
        return (log_z[..., None] + emissions).logsumexp(-2)


class Narrow(TinyHMM):
    def step(self, read, state, t):
        said = super().step(read, state, t)
        return said._replace(log_word=said.log_word[..., :2])


class EndlessTwist(TinyHMM):
    def step(self, read, state, t):
        said = super().step(read, state, t)
        return said._replace(log_twist=torch.full_like(said.log_prior, -torch.inf))


class OneKey(TinyHMM):
    """Says that everything goes on alike, which it does not."""

    def step(self, read, state, t):
        return super().step(read, state, t)._replace(key=torch.zeros(1).long())


def test_a_model_that_is_right_passes():
    check_steps(tiny(), BATCH)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Leaky, r"Leaky.step gives log_prior, .* totals 0.9 over"),
        (OtherWords, r"OtherWords.log_words gives a word log p = .*, and step gives"),
        (Narrow, r"Narrow.step gives log_word of shape \(2, 1, 2\) after 1 histories"),
        (EndlessTwist, r"EndlessTwist.step gives log_twist that is NaN or infinite"),
    ],
)
def test_what_a_step_says_wrongly_is_named(kind, message):
    with pytest.raises(BrokenModelError, match=message):
        check_steps(tiny(kind=kind), BATCH)


def test_a_prior_that_totals_less_may_say_so():
    model = tiny(kind=SaysSo)
    with pytest.raises(BrokenModelError, match=r"log_words gives a word"):
        check_steps(model, BATCH)  # which has not lost what step has
    check_steps(tiny(kind=SaysSoOfWords), BATCH)


def test_keys_of_what_goes_on_in_different_ways_are_refused():
    model = tiny(kind=OneKey)
    with pytest.raises(BrokenModelError, match=r"OneKey.step and take: .*Step.key"):
        consistency.check(
            model, model.proposal(), BATCH, dtype=torch.float64, searches=True
        )


class Ending(TinyHMM):
    """Writes nothing after an end."""

    def read(self, batch, recurrent):
        read = super().read(batch, recurrent)
        return read.masked_fill((batch.inputs == END)[..., None], -torch.inf)


def case(model: TinyHMM, **how: Any) -> Case:
    def every_walk(text):
        return torch.cartesian_prod(*[torch.arange(NUM_STATES)] * len(text)).view(
            1, -1, len(text)
        )

    how = {"words": (0, 1, 2, 4, 5), "proposals": ("adapted",), "length": 2} | how
    return Case(model, every_walk, **how)


def law(of: Case, name: str) -> Any:
    return next(each for each in laws(of) if str(each).startswith(name))


def test_laws_name_what_an_author_wrote():
    with pytest.raises(LawError, match=r"Leaky.step gives log_prior"):
        law(case(tiny(kind=Leaky)), "steps_are_what_they_say")()
    with pytest.raises(LawError, match=r"nothing follows the end .* goes_on=False"):
        law(case(tiny(kind=Ending)), "total_is_that")()
    law(case(tiny(kind=Ending), goes_on=False), "total_is_that")()
    with pytest.raises(LawError, match=r"log p of all latents is"):
        law(case(tiny(kind=OneKey)), "wide_searches_are_exact")()


class LooksAhead(TinyHMM):
    """Expects of the text after a word what its states say of the next one."""

    def step(self, read, state, t):
        said = super().step(read, state, t)
        if t + 1 == read.shape[1]:
            return said._replace(log_twist=torch.zeros_like(said.log_prior))
        return said._replace(log_twist=read[:, None, t + 1].expand_as(said.log_prior))


def test_a_look_ahead_that_is_not_named_is_told_where():
    of = case(tiny(kind=LooksAhead))
    with pytest.raises(LawError, match=r"Step.log_twist.*reads_on"):
        law(of, "pieces_are_scored_as_the_whole")()


class Counting(TinyHMM):
    """Computes in ``step`` what ``take`` goes on from: the history's last log p."""

    def begin(self, batch):
        return (*super().begin(batch), torch.zeros(len(batch.length), 1))

    def step(self, read, state, t):
        last, before = state
        computed = before + self.transitions.log_softmax(-1)[last].amax(-1)
        said = super().step(read, (last,), t)
        return said._replace(state=(last, computed))

    def take(self, read, state, choice, t):
        return choice, state[1]

    def log_words(self, read, state):
        return super().log_words(read, state[:1])


def test_take_is_given_what_step_has_computed():
    model = tiny(kind=Counting)
    batch = TokenBatch.collate([TEXT, TEXT[:1]], first=2)
    walks = torch.tensor([[[0, 2, 1, 1], [1, 1, 0, 2]], [[0, 0, 0, 0], [2, 0, 0, 0]]])
    after = model.advance(model.encode(batch), walks)
    best = model.transitions.log_softmax(-1).amax(-1)
    for b, length in enumerate((4, 1)):
        for k in range(2):
            came_from = [NUM_STATES, *walks[b, k, : length - 1].tolist()]
            expected = sum(best[last] for last in came_from)
            torch.testing.assert_close(after.parts[1][b, k].double(), expected)
    text = [TEXT] * 2
    one, other = (
        DiscreteFilter(PASSES * 2).log_weights(scored(m, text)) for m in (model, tiny())
    )
    torch.testing.assert_close(one, other)


class Never(TinyHMM):
    """Writes no 5."""

    def read(self, batch, recurrent):
        read = super().read(batch, recurrent)
        return read.masked_fill((batch.targets == 5)[..., None], -torch.inf)


def test_an_impossible_text_is_said_to_be_one():
    method = DiscreteFilter(PASSES * 100)
    [row] = method.log_weights(scored(tiny(kind=Never), [[4, 5]]))
    with pytest.raises(MissedSupportError, match="exactly 0: all latents were summed"):
        method.estimate(row, 2)


class Median(Estimator):
    """The median of five draws, which is no bound."""

    name, how, bound = "median", "median of {proposal}", Bound.NONE

    def __init__(self, num_samples: int = 5) -> None:
        self.num_samples = num_samples

    def log_weights(self, texts):
        q = texts.proposal.encode(texts.batch)
        draws = texts.proposal.sample(
            q, texts.streams(self.num_samples), self.num_samples
        )
        p = texts.model.encode(texts.batch)
        log_w = texts.model.log_joint(p, draws.latents) - draws.log_q
        return log_w.median(-1, keepdim=True).values

    def estimate(self, log_w, num_tokens) -> Estimate:
        return self.estimate_of_few(log_w, num_tokens)


def test_an_estimator_of_two_methods_keeps_its_bound_and_takes_whole_texts():
    texts = scored(tiny(), [TEXT])
    found = Median().estimate(Median().log_weights(texts)[0], len(TEXT))
    assert found.bound is Bound.NONE
    assert abs(found.log_evidence - log_p(tiny(), TEXT)) < 2
    with pytest.raises(ValueError, match="estimator=median takes whole texts"):
        Median().extend(texts, None)


class Keyed(TinyHMM):
    def step(self, read, state, t):
        return super().step(read, state, t)._replace(key=torch.arange(NUM_STATES))


def test_exact_sums_what_fits_and_says_where_it_does_not():
    long = TEXT * 10
    for kind, text, bound in (
        (Keyed, long, Bound.EXACT),
        (TinyHMM, TEXT, Bound.EXACT),
        (TinyHMM, long, Bound.STRICT_LOWER),
    ):
        method, texts = Exact(), scored(tiny(kind=kind), [text])
        [row] = method.log_weights(texts)
        found = method.estimate(row, len(text))
        assert found.bound is bound
        truth = log_p(tiny(), text)
        assert found.log_evidence <= truth + 1e-9
        if bound is Bound.EXACT:
            assert found.log_evidence == pytest.approx(truth, abs=1e-9)
    begin = Particles.begin(1, "cpu")
    texts = scored(tiny(kind=Keyed), [long])
    before = method.extend(texts.piece(0, 7), begin)
    [after] = method.extend(texts.piece(7, 40), before).log_w
    found = method.difference(after, before.log_w[0], 33)
    exact = log_p(tiny(), long) - log_p(tiny(), long[:7])
    assert found.bound is Bound.EXACT
    assert found.log_evidence == pytest.approx(exact, abs=1e-9)
