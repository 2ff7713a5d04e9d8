"""How queries become texts: where a continuation begins, and what cancels."""

import pytest

from lm_latent_eval.scoring.texts import Cutter, Query
from lm_latent_eval.text.counts import sentence_starts
from lm_latent_eval.text.encoder import reader
from lm_latent_eval.text.words import END, WordTokenizer
from tests import tiny_checkpoint
from tests.tiny_checkpoint import ids

TWO = "the fox saw Ada. Bo saw the fox."
FIRST = ids("the", "fox", "saw", "Ada", ".")
SECOND = ids("Bo", "saw", "the", "fox", ".")
WORDS = reader(tiny_checkpoint.tokenizer(), "closed")
DOCUMENTS, SENTENCES = Cutter(WORDS), Cutter(WORDS, sentence_starts)


def cut(texts):
    return [(text.context, text.words) for text in texts]


def test_a_mark_in_a_text_is_an_error_that_names_it():
    words = tiny_checkpoint.tokenizer().vocabulary
    marks = [tiny_checkpoint.tokenizer().word(i) for i in range(4)]
    both = WordTokenizer.at_white_space([*marks, *words], 4 + len(words))
    cutter = Cutter(reader(both, "closed"))
    with pytest.raises(ValueError, match=r"task/3 \('fox </s>'\): the text has </s>"):
        cutter.whole(Query(0, "task/3", "fox </s>"))
    with pytest.raises(ValueError, match=r"task/3 \('<s> \|  fox'\): .* has <s>"):
        cutter.continuation(Query(0, "task/3", " fox", "<s>"))


@pytest.mark.parametrize("strings", [("saw \ud83d", ""), ("saw", "Ada \ude00 ")])
def test_half_a_character_is_an_error_that_names_it(strings):
    """Nothing is scored in its place: that would be another text."""
    with pytest.raises(ValueError, match=r"^task/3 \(.*\): '.*\\ude?.*' ends in half"):
        Query(0, "task/3", *strings)


def test_whole_texts_end():
    """A document is one text; an empty one ends, but has no sentence."""
    query = Query(0, "q", TWO)
    assert cut(DOCUMENTS.whole(query)) == [([], [*FIRST, *SECOND, END])]
    texts = SENTENCES.whole(query)
    assert cut(texts) == [([], [*FIRST, END]), ([], [*SECOND, END])]
    assert [text.name for text in texts] == ["q", "q/sentence 1"]
    for text in ("", " \n"):
        assert cut(DOCUMENTS.whole(Query(0, "q", text))) == [([], [END])]
        assert cut(SENTENCES.whole(Query(0, "q", text))) == [([], [])]
        for cutter in (DOCUMENTS, SENTENCES):
            assert cut(cutter.continuation(Query(0, "q", text))) == [([], [])]


@pytest.mark.parametrize(
    ("cutter", "context", "text", "expected"),
    [
        (DOCUMENTS, "the fox", " saw Ada. Bo", [(FIRST[:2], [*FIRST[2:], SECOND[0]])]),
        # A word across the border is the continuation's.
        (DOCUMENTS, "the f", "ox saw", [(FIRST[:1], FIRST[1:3])]),
        # Nothing given: the first sentence ends, the second may go on.
        (SENTENCES, "", TWO, [([], [*FIRST, END]), ([], SECOND)]),
        # In the middle of the first, and at its end, which is not known to be one.
        (SENTENCES, "the fox", TWO[7:], [(FIRST[:2], [*FIRST[2:], END]), ([], SECOND)]),
        (SENTENCES, "the fox saw Ada.", TWO[16:], [(FIRST, [END]), ([], SECOND)]),
        # In the second, the first cancels.
        (SENTENCES, TWO[:19], TWO[19:], [(SECOND[:1], SECOND[1:])]),
        (SENTENCES, TWO, "", [(SECOND, [])]),
    ],
)
def test_where_a_continuation_begins(cutter, context, text, expected):
    assert cut(cutter.continuation(Query(0, "q", text, context))) == expected


def test_the_parts_cost_what_the_whole_does():
    writing = tiny_checkpoint.orthography()
    read = reader(tiny_checkpoint.tokenizer(), "spelled", orthography=writing)
    spelled = Cutter(read, sentence_starts)
    query = Query(0, "q", "  the zebra saw Ada.   Bo  saw a fox. \n")
    reading = spelled.reader(query.text)
    texts = spelled.whole(query)
    assert len(texts) == 2
    total = sum(text.log_spacing for text in texts)
    assert total == pytest.approx(sum(reading.log_spacing))
    costs = [c for text in texts for c in text.word_costs]
    assert sum(costs) == pytest.approx(sum(reading.log_unknown))
    for context in ("", "  the zebra", "  the zebra saw Ada.   Bo"):
        rest = Query(0, "q", query.text[len(context) :], context)
        parts = spelled.continuation(rest)
        words = sum(e <= len(context) for e in reading.ends)
        # All but what follows the last word, whose end is not predicted.
        expected = sum(reading.log_spacing[words:-1])
        assert sum(t.log_spacing for t in parts) == pytest.approx(expected)
        costs = sum(c for t in parts for c in t.word_costs)
        assert costs == pytest.approx(sum(reading.log_unknown[words:]))


def test_what_is_given_is_no_part_of_the_text():
    cutter = Cutter(WORDS, conditional_on="the question")
    [text] = cutter.continuation(Query(0, "q", " the fox saw", "Bo saw the fox."))
    assert (text.context, text.words) == ([], ids("the", "fox", "saw"))
    assert text.condition == tuple(SECOND)
    [other] = cutter.continuation(Query(1, "q", " the fox", "Ada"))
    assert other.given != text.given, "contexts are not shared"
    with pytest.raises(ValueError, match=r"q .*: .* put the question before"):
        cutter.whole(Query(0, "q", "the fox"))
