"""Converted archives score as the originals do, and wrong ones say what is wrong."""

from __future__ import annotations

from functools import partial

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.convert.entitynlm import convert
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.allennlp_archive import files, write_directory, write_tar
from tests.models.entitynlm import reference

MARKS = ["@@PADDING@@", "@@UNKNOWN@@", "@@START@@", "@@END@@"]
WORDS = [*MARKS, *(f"w{i}" for i in range(4, 20))]
CASES = reference.numbers()["cases"]
NONPEEKING = reference.numbers()["nonpeeking"]["cases"]
TOLERANCE = 1e-10


def archive(name: str, *, proposal: bool = False, offset: bool = False, words=WORDS):
    """Files of configuration A or B with its words in any order."""
    weights = dict(reference.originals(name)[proposal])
    rows = [WORDS.index(word) for word in words]
    for tensor in weights:
        if tensor.startswith(("_text_field", "_vocab_projection")):
            weights[tensor] = weights[tensor][rows]
    config = {
        "dataset_reader": {"type": "conll2012_jsonl", "offset": int(offset)},
        "model": {"type": "entitydisc" if proposal else "entitynlm"},
    }
    unknown = ["rare", "rarer", "rarest"]
    return files(config, weights, {"tokens": words, "tokens_unk": unknown})


SHUFFLED = [*MARKS[:2], *WORDS[:9:-1], *MARKS[:1:-1], *WORDS[4:10]]


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_converted_model_scores_as_the_original(tmp_path, name, capsys):
    files_of = partial(archive, name, words=SHUFFLED)
    paths = [
        write_tar(tmp_path / "p.tar.gz", files_of()),
        write_tar(tmp_path / "q.tar.gz", files_of(proposal=True)),
        write_directory(tmp_path / "r", files_of(proposal=True, offset=True)),
    ]
    output = tmp_path / "converted"
    command = ["convert", "entitynlm", "--archive", str(paths[0])]
    command += ["--proposal", str(paths[1]), "--proposal", str(paths[2])]
    assert main([*command, "--output", str(output)]) == 0
    assert capsys.readouterr().out == (
        f"wrote {output}: 20 words to utter; "
        "proposals: adapted, peeking, nonpeeking, prior\n"
    )
    checkpoint = load_checkpoint(output, expected="entitynlm")
    model, config = checkpoint.model, checkpoint.model.config
    assert config.tie_weights == (name == "B")
    assert config.num_unknown_types == 3
    number = checkpoint.tokenizer.tokenizer.token_to_id
    assert [number(mark) for mark in MARKS] == [0, 1, 2, 3]

    def assert_scores(of, score, case, golden):
        document = [number(WORDS[i]) for i in case["tokens"]]
        batch = TokenBatch.collate([document[1:]], first=document[0])
        found = score(of.encode(batch), reference.chains(case["z"])).item()
        assert abs(found - golden) < TOLERANCE

    p, peeking = model, model.proposal("peeking")
    for case in (case for case in CASES if case["model"] == name):
        assert_scores(p, p.log_joint, case, case["p"]["logp"])
        assert_scores(peeking, peeking.log_prob, case, case["q"]["logq_forward"])
    q = model.proposal("nonpeeking")
    for case in (case for case in NONPEEKING if case["model"] == name):
        assert_scores(q, q.log_prob, case, case["logq_nonpeeking"])


def test_sentences_are_lines(tmp_path):
    convert(write_directory(tmp_path / "p", archive("A")), tmp_path / "out")
    tokenizer = load_checkpoint(tmp_path / "out").tokenizer
    wanted = [4, 5, END, START, 1, 6]
    for text in ("w4 w5\nw99 w6", "w4  w5 \n\n w99 w6", "w4 w5 \n @@START@@ w99 w6"):
        assert tokenizer(text).ids == wanted


def damaged(old: bytes, new: bytes):
    return {name: data.replace(old, new) for name, data in archive("A").items()}


OTHER = archive("A", proposal=True, words=SHUFFLED)
WRONG = {
    "proposal belongs to another model": [archive("A"), OTHER],
    "no generative EntityNLM": [archive("A", proposal=True)],
    "our proposals.peek": [archive("A"), archive("B", proposal=True)],
    "of other code": [damaged(b"_rnn._rnns.0", b"_rnn._runs.0")],
    "before it are other models": [damaged(b"_entity_type", b"_entity_kind")],
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_archive_is_refused(tmp_path, refused, message):
    path, *proposals = (
        write_directory(tmp_path / f"a{n}", contents)
        for n, contents in enumerate(WRONG[message])
    )
    command = ["convert", "entitynlm", "--archive", path]
    command += [part for q in proposals for part in ("--proposal", q)]
    assert message in refused(*command, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()
