"""Strings become targets: windows, contexts, borders."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.source import TokenCutter
from tests.wrappers.mdm import tiny


def query(text: str, context: str = "") -> Query:
    return Query(0, "q", text, context)


@pytest.fixture(scope="module")
def subwords():
    """Return a tokenizer of bytes, some of them joined, as published ones are."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<mask>"],
        show_progress=False,
    )
    found.train_from_iterator(["the fox saw Ada"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=found, mask_token="<mask>")


@pytest.mark.parametrize("number", [1, 9, 10, 11, 15, 16, 47])
def test_every_token_is_predicted_once_after_those_before_it(number):
    cut = TokenCutter(tiny.tokenizer(framed=True), tiny.MASK, 12)  # room for ten
    ids = [5 + n * n % 7 for n in range(number)]
    found = cut.whole(query(" ".join(tiny.VOCABULARY[n] for n in ids)))
    predicted = [token for target in found.targets for token in target.tokens]
    assert predicted == ids and found.num_tokens == number
    done = 0
    for n, target in enumerate(found.targets):
        first, *given = target.before
        assert first == tiny.BEGIN and target.after == (tiny.END,)
        assert given == ids[done - len(given) : done]
        assert target.num_places <= 12
        if n:
            assert len(target) <= 5 and len(given) >= 5
        done += len(target)


def test_a_long_context_loses_its_beginning():
    cut = TokenCutter(tiny.tokenizer(), tiny.MASK, 6)
    (target,) = cut.continuation(query(" fox saw", "the Ada Bo . a the")).targets
    given, rest = (
        [tiny.VOCABULARY[t] for t in x] for x in (target.before, target.tokens)
    )
    assert (given, rest) == (["Bo", ".", "a", "the"], ["fox", "saw"])
    with pytest.raises(ValueError, match="target has 7 tokens, and the network has ro"):
        cut.continuation(query(" the" * 7, "a"))


@pytest.mark.parametrize("fast", [True, False])
def test_a_token_across_the_border_is_the_continuations(subwords, fast, monkeypatch):
    if not fast:  # as tokenizers are that tell no places in the text
        monkeypatch.setattr(type(subwords), "is_fast", False)
    cut = TokenCutter(subwords, subwords.mask_token_id, 40)
    whole = subwords.encode("the fox é", add_special_tokens=False)
    for context in ("", "the", "the ", "the fo", "the fox", "the fox ", "the fox é"):
        found = cut.continuation(query("the fox é"[len(context) :], context))
        targets = found.targets or [None]
        given = list(targets[0].before) if found.targets else whole
        rest = list(targets[0].tokens) if found.targets else []
        assert given + rest == whole
        assert context or not given, "though a first token may write nothing"
        assert context.startswith(subwords.decode(given))
        one_more = subwords.decode(whole[: len(given) + 1])
        assert not rest or not context.startswith(one_more)


def test_what_tokens_do_not_spell_is_counted(subwords):
    plain = TokenCutter(subwords, subwords.mask_token_id, 40).whole(query("the\t Fox"))
    assert not plain.lossy and not plain.unknown
    words = TokenCutter(tiny.tokenizer(), tiny.MASK, 40)
    odd = words.whole(query("the  zebra"))
    assert odd.lossy and odd.unknown == 1
    assert not words.whole(query("the fox")).lossy
