"""Sequences of tokens as text: bytes that make no character are written as such."""

from lm_latent_eval.distortion.languages.language import (
    SMALLEST,
    train_bpe,
    word_tokenizer,
)
from lm_latent_eval.distortion.report.style import shown


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
