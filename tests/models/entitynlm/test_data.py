"""Coreference files: what is read, what is kept, and what is refused."""

from __future__ import annotations

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.entitynlm.data import CoreferenceText, Mention, read_conll
from lm_latent_eval.models.entitynlm.training import Annotator
from lm_latent_eval.text.words import END, WordTokenizer

SHORT = """\
# begin document one
0\tAda\t(7)
1\tmet\t_
2\ther\t(3(7)
3\tson\t3)
4\t.\t_
# end document
"""
LONG = """\
#begin document (bn/x/00); part 000
bn/x/00 0 0 The DT (S(NP* - - - speaker * (0
bn/x/00 0 1 end NN *) - - - speaker (V*) 0)|(12)

bn/x/00 0 0 Yes UH * - - - speaker -
#end document
#begin document (bn/x/00); part 001
bn/x/00 1 0 No UH * - - - speaker (V*) (V*) -
#end document
"""


def write(folder, content: str):
    path = folder / "file.conll"
    path.write_text(content, encoding="utf-8")
    return path


NESTED = "#begin document a\n0\tx\t(1\n1\ty\t(1)(1\n2\tz\t1)\n3\tz\t1)\n#end document\n"


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (SHORT, [("one", "Ada met her son .", [(0, 3, 7), (8, 15, 3), (8, 11, 7)])]),
        # Sentences of different widths, documents of several parts.
        (
            LONG,
            [
                ("(bn/x/00); part 000", "The end Yes", [(0, 7, 0), (4, 7, 12)]),
                ("(bn/x/00); part 001", "No", []),
            ],
        ),
        # Nested mentions of one entity close from within.
        (NESTED, [("a", "x y z z", [(0, 7, 1), (2, 5, 1), (2, 3, 1)])]),
    ],
    ids=["three columns", "CoNLL 2012", "nested"],
)
def test_what_is_read(tmp_path, content, texts):
    assert read_conll(write(tmp_path, content)) == [
        CoreferenceText(name, text, tuple(Mention(*m) for m in mentions))
        for name, text, mentions in texts
    ]


def test_a_real_corpus_is_read(data_dir):
    """Every twentieth document of OntoGUM."""
    files = sorted((data_dir / "gum/coref/ontogum/conll").glob("*conll"))[::20]
    texts = [text for path in files for text in read_conll(path)]
    assert len(texts) == len(files) == 12
    assert sum(len(text.mentions) for text in texts) == 1348


def test_the_command_trains_on_files(tmp_path, capsys):
    data = str(write(tmp_path, SHORT * 2))
    size = ["--embedding-dim", "4", "--hidden-size", "4", "--max-mention-length", "3"]
    run = ["--epochs", "1", "--output", str(tmp_path / "out"), *size]
    assert main(["train", "entitynlm", "--data", data, "--dev", data, *run]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'out'}\n"
    config = load_checkpoint(tmp_path / "out", expected="entitynlm").model.config
    assert (config.hidden_size, config.max_mention_length) == (4, 3)


MANY = "|".join(f"({n})" for n in range(40))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SHORT.replace("3)", "_"), r"line 7: '\(3' of line 4 is not closed"),
        (SHORT.replace("(7)", "7)", 1), r"line 2: '7\)' closes .* nothing opened"),
        (SHORT.replace("met\t_", "met"), "line 3: 2 columns, after lines of 3"),
        (SHORT.replace("Ada\t(7)", "x\ty\tAda\t(7)"), "line 2: 5 columns: expected"),
        (SHORT.replace("(3(7)", "(3,(7)"), r"line 4: '\(3,\(7\)' is no coreference"),
        (SHORT.replace("(3(7)", f"{MANY},"), "is no coreference"),  # in no time
        (SHORT.replace("# begin document one\n", ""), "line 1: a word before '#begin"),
        (SHORT.replace("# end document\n", ""), "line 6: no '#end document': cut off"),
        (SHORT.replace("# end document\n", "") + SHORT, "line 7: the document before"),
        (SHORT + "# end document\n", "line 8: '#end document' without"),
        ("", "has no documents"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=message) as raised:
        read_conll(path)
    assert str(path) in str(raised.value)


# -- chains --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return WordTokenizer.train(["Ada met her son in the old house ."] * 2)


def annotated(text: str, *spans: tuple[str, int]) -> CoreferenceText:
    """Mentions by the words that they are made of."""
    mentions = [
        Mention(text.index(words), text.index(words) + len(words), entity)
        for words, entity in spans
    ]
    ordered = sorted(mentions, key=lambda m: (m.start, -m.end))
    return CoreferenceText("", text, tuple(ordered))


SON, REST, CUT = "Ada met her son", "son in the old house", "old-house met(her son)"
HOUSE = f"Ada met her {REST}"


@pytest.mark.parametrize(
    ("text", "spans", "longest", "entity", "remaining"),
    [
        (f"{SON} in it.", (("her son", 5), ("Ada", 9)), 3, "10220000", "00100000"),
        # The outermost mention remains, and of those that cross the first one.
        (
            SON,
            (("her son", 5), ("son", 8), ("her", 9), ("Ada", 9)),
            3,
            "10220",
            "00100",
        ),
        (SON, (("met her", 1), ("her son", 2)), 5, "01100", "01000"),
        # One that is too long leaves those within.
        (HOUSE, ((f"her {REST}", 5), ("her", 9)), 5, "001000000", "000000000"),
        (HOUSE, ((f"her {REST}", 5), ("her", 9)), 6, "001111110", "005432100"),
        # Side by side they are two.
        (SON, (("her", 4), ("son", 4)), 5, "00110", "00000"),
        # Annotated words may be cut otherwise: a mention covers what starts in it.
        (CUT, (("old-house", 1), ("met(her", 2)), 5, "1222000", "0210000"),
    ],
)
def test_chains_of_a_text(tokenizer, text, spans, longest, entity, remaining):
    ids, *chain = Annotator(tokenizer, longest)(annotated(text, *spans))
    assert len(ids) == len(entity) and ids[-1] == END
    assert ["".join(map(str, row)) for row in chain] == [entity, remaining]
