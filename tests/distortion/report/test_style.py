import pytest

from lm_latent_eval.distortion.languages.language import (
    SMALLEST,
    train_bpe,
    word_tokenizer,
)
from lm_latent_eval.distortion.report.style import MODELS, colours, legend, shown
from lm_latent_eval.report.figures import drawable, page
from tests.distortion.report.saved import written


def test_what_the_font_lacks_is_spelled_out(tmp_path):
    """A warning, which is an error here, would say that there are boxes."""
    assert drawable("naïve τ 漢") == "naïve τ \\u6f22"
    with page(tmp_path / "a", width=2, height=2) as figure:
        figure.suptitle("漢字")
        figure.subplots().plot([0], [0], label="中")
        legend(figure)
    svg = written(tmp_path / "a")
    assert "<!-- \\u6f22\\u5b57 -->" in svg and "<!-- \\u4e2d -->" in svg


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


# Sequences as text


def test_sequences_are_shown_as_words_bytes_or_numbers():
    tokenizer = word_tokenizer(["a", "b", "c"])
    assert shown(tokenizer.convert_tokens_to_ids(["b", "c"]), tokenizer) == "b c"
    assert shown([7, 8], None) == "7 8"
    bpe = train_bpe(["two plums and two plums"], vocab_size=SMALLEST + 2)
    whole = bpe("né two\n").input_ids
    accent = bpe("é").input_ids
    assert len(accent) == 2, "premise: a token a byte"
    assert shown([*whole, accent[0]], bpe) == "né two\\n\\xc3"
