import pytest
from matplotlib.figure import Figure

from lm_latent_eval.distortion.languages.language import (
    SMALLEST,
    train_bpe,
    word_tokenizer,
)
from lm_latent_eval.distortion.report.style import (
    BAND,
    MODELS,
    NO_ERROR,
    colours,
    legend,
    plot_band,
    shown,
    zero_line,
)
from lm_latent_eval.report.figures import ENDINGS, drawable, page
from tests.distortion.report.saved import written


def test_a_page_is_written_twice_the_same(tmp_path):
    paths = [tmp_path / "new" / name for name in ("T=0.7", "T=0.85")]
    for path in paths:
        with page(path, width=2, height=2, title="one $x$") as figure:
            figure.subplots().plot([0, 1], [0, 1])
    svg = written(paths[0])
    assert "<!-- one $x$ -->" in svg, "dollars are not mathematics"
    assert "<text" not in svg, "glyphs, not fonts' names"
    for kind in ENDINGS:
        one, other = (path.with_name(f"{path.name}.{kind}") for path in paths)
        assert one.read_bytes() == other.read_bytes()
    content = (tmp_path / "new" / "T=0.7.pdf").read_bytes()
    assert b"/FontFile2" in content, "fonts are embedded"
    assert b"/Type3" not in content, "and whole"


def test_what_the_font_lacks_is_spelled_out(tmp_path):
    """A warning, which is an error here, would say that there are boxes."""
    assert drawable("naïve τ 漢") == "naïve τ \\u6f22"
    with page(tmp_path / "a", width=2, height=2, title="漢字") as figure:
        figure.subplots().plot([0], [0], label="中")
        legend(figure)
    svg = written(tmp_path / "a")
    assert "<!-- \\u6f22\\u5b57 -->" in svg and "<!-- \\u4e2d -->" in svg


def test_nothing_is_written_where_the_drawing_fails(tmp_path):
    with pytest.raises(KeyError), page(tmp_path / "a", width=1, height=1):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_kind_of_model_has_its_colour_in_any_company():
    alone = colours(["GPT-2 medium"])
    together = colours(["mine", "LSTM", "GPT2-medium, more data", "GPT-2 medium"])
    assert together["GPT2-medium, more data"] == alone["GPT-2 medium"]
    assert together["LSTM"] == colours(["lstm"])["lstm"] == MODELS["lstm"]
    assert list(together) == ["mine", "LSTM", "GPT2-medium, more data", "GPT-2 medium"]
    assert len(set(together.values())) == 4
    assert len(colours(map(str, range(8)))) == 8
    with pytest.raises(ValueError, match="9 models share one figure"):
        colours(map(str, range(9)))


def test_a_legend_names_each_label_once_in_order():
    figure = Figure(figsize=(9, 2))
    for ax in figure.subplots(1, 2):
        ax.plot([0], [0], label="b")
        zero_line(ax)
        plot_band(ax, [0, 1], [0, 0], [-1, -1], [1, 1], color="r", label="a")
    legend(figure)
    (found,) = figure.legends
    assert [t.get_text() for t in found.get_texts()] == ["b", NO_ERROR, "a", BAND]


# Sequences as text


def test_bytes_that_make_no_character_are_written_as_bytes():
    bpe = train_bpe(["two plums and two plums"], vocab_size=SMALLEST + 2)
    whole = bpe("né two\n").input_ids
    assert shown(whole, bpe) == "né two\\n"
    accent = bpe("é").input_ids
    assert len(accent) == 2, "premise: a token a byte"
    assert "\ufffd" in bpe.decode([*whole, accent[0]]), "premise"
    assert shown([*whole, accent[0]], bpe) == "né two\\n\\xc3"


def test_words_and_numbers():
    tokenizer = word_tokenizer(["a", "b", "c"])
    ids = tokenizer.convert_tokens_to_ids(["b", "c"])
    assert shown(ids, tokenizer) == "b c"
    assert shown([7, 8], None) == "7 8"
