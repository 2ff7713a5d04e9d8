"""Parts of texts: they add up, and two models' parts compare where both end."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.cli import main
from lm_latent_eval.report.compare import analysis, compare
from lm_latent_eval.scoring.files import score
from lm_latent_eval.scoring.interface import open_model, scorer_of
from lm_latent_eval.scoring.spans import Spans, align, of_words, words
from lm_latent_eval.scoring.string_scorers import causal_record
from tests import tiny_checkpoint
from tests.tiny_causal import of_bytes

TEXTS = ["Ada saw the fox .", "Bo saw Ada .", "the fox saw Bo .", "Bo saw the fox ."]


@given(st.text("ab \n", min_size=1))
def test_words_make_the_text(text):
    parts = [text[a:b] for a, b in words(text)]
    assert "".join(parts) == text
    assert all(len(part.split()) <= 1 for part in parts)


@given(st.data(), st.integers(1, 9))
def test_aligned_parts_have_all_of_the_difference(data, size):
    def drawn():
        ends = sorted({*data.draw(st.sets(st.integers(1, size))), size})
        return Spans(ends, [float(e) for e in ends], [0.5] * len(ends))

    a, b = drawn(), drawn()
    found = align(a, b)
    assert [each.start for each in found] == [0, *(e.end for e in found[:-1])]
    assert {each.end for each in found} == {*a.ends} & {*b.ends}
    assert sum(e.nats for e in found) == pytest.approx(sum(a.nats) - sum(b.nats))
    squares = 0.25 * (len(a.ends) + len(b.ends))
    assert sum(e.draws_stderr**2 for e in found) == pytest.approx(squares)


@pytest.fixture(scope="module")
def folders(spelled_directory, tmp_path_factory):
    """A model with latents, an LSTM and a network of bytes, all of strings."""
    folder, writing = tmp_path_factory.mktemp("spans"), tiny_checkpoint.orthography()
    lstm = tiny_checkpoint.write(folder / "l", tiny_checkpoint.lstm(), writing)
    return {"k": spelled_directory, "l": lstm, "g": of_bytes(folder / "g")}


def test_words_of_an_exact_model_make_its_likelihood(folders):
    """All but the end of the text, which whole texts are charged for."""
    scorer = scorer_of(open_model(folders["l"]), {}, quiet=True)
    wholes = score(scorer, TEXTS).answers
    longer = score(scorer, [f"{text} Ada" for text in TEXTS]).answers
    ends = of_words(scorer, [f"{text} Ada" for text in TEXTS])
    for whole, spans, more, text in zip(
        wholes, of_words(scorer, TEXTS), longer, TEXTS, strict=True
    ):
        taken = sum(spans.nats)
        assert spans.ends[-1] == len(text)
        assert 0 < -whole.estimate.log_evidence - taken < 10, "the end is the rest"
        assert taken < -more.estimate.log_evidence
        assert spans.draws_stderr == (0.0,) * len(spans.ends)
    for spans, again in zip(of_words(scorer, TEXTS), ends, strict=True):
        assert again.nats[: len(spans.nats)] == pytest.approx(spans.nats, abs=1e-5)


def test_tokens_make_the_likelihood_of_a_causal_network(folders):
    record = causal_record(folders["g"], ["Ada saw é .", "Bo"])
    for answer in record.answers:
        document = record.documents[answer.index]
        assert document.spans.ends[-1] == answer.bytes
        total = -sum(document.spans.nats)
        assert total == pytest.approx(answer.estimate.log_evidence)


def test_kinds_of_words_add_up_to_the_difference(folders, tmp_path, capsys):
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    sides = [str(folders[name]) for name in "kg"]
    options = ["--data", str(data), "--words", "--num-samples", "9"]
    page = tmp_path / "page.html"
    assert main(["compare", *sides, *options, "--page", str(page)]) == 0
    span = r'class="[ab]" style="--s: [\d.]+" title="[^"]+ bits">'
    coloured = re.findall(span, page.read_text())
    assert len(coloured) >= 2, "words, coloured by the side that predicts them better"
    shown = capsys.readouterr().out
    assert "names (2):" in shown
    assert "Half of A - B is in" in shown
    one = causal_record(folders["g"], TEXTS)
    scorer = scorer_of(open_model(folders["l"]), {}, quiet=True)
    other = score(scorer, TEXTS)
    documents = {
        n: type(one.documents[n])(text, spans=spans)
        for n, (text, spans) in enumerate(
            zip(TEXTS, of_words(scorer, TEXTS), strict=True)
        )
    }
    other = type(other)(other.task, other.settings, other.answers, True, documents)
    [found] = compare({"A": [[one]], "B": [[other]]})
    kinds = analysis.kinds(found)
    assert {kind.name for kind in kinds} >= {"names", "punctuation", "ends of texts"}
    total = sum(kind.difference.value for kind in kinds)
    assert total == pytest.approx(found.difference.value)
    for part in found.parts:
        assert "".join(text for text, _ in analysis.words_of(part)) == part.text
        taken = sum(span.nats for _, span in analysis.words_of(part) if span)
        assert taken == pytest.approx(sum(each.nats for each in part.spans))
