"""Original checkpoints, rebuilt in their format, become checkpoints of ours."""

import json
import pickle

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.convert.relation_models import _topics
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import (
    END,
    SPECIAL_WORDS,
    START,
    UNKNOWN,
    WordTokenizer,
)
from tests.models.lrlm.reference import lrlm, numbers, original
from tests.models.nklm.test_golden import nklm

BESIDE = ("entity_vec", "relation_vec", "alias_vec")
"""What the original's checkpoints lack."""
KINDS = [(name, kind) for name in "AB" for kind in ("lrlm", "nklm")]


def spelled(name):
    """A string for every word of a configuration, in the original's order."""
    marks = ["<unk>", "<pad>", "<s>", "</s>"]
    return [*marks, *(f"w{n}" for n in range(4, numbers(name)["num_words"]))]


def write(folder, name, kind, **changes):
    """Write the files of a configuration; return the arguments of the command."""
    content, weights = numbers(name), original(name, kind)
    words, size = spelled(name), content["config"]["vocab_size"]
    rows = {
        row: " ".join(words[w] for w in alias)
        for d in content["documents"]
        for f in d["facts"]
        for row, alias in zip(f["rows"], f["aliases"], strict=True)
    }
    # Rows of documents that were left out, of words that no text has.
    aliases = [rows.get(n, f"w4 w4 w4 w{n}") for n in range(len(weights["alias_vec"]))]
    texts = []
    for d in content["documents"]:
        facts = [
            (f["rel_typ"], f["obj_id"], [rows[r] for r in f["rows"]])
            for f in d["facts"]
        ]
        texts.append(([words[w] for w in d["words"]], d["id"], facts))
    model = {n: w for n, w in weights.items() if n not in BESIDE}
    files = {
        "model": {"model": model, "optimizer": {"state": {0: {"step": 3}}}},
        "options": content["config"][kind],
        "vocabulary": words[:size],
        "texts": texts,
        "entities": weights["entity_vec"],
        "relations": weights["relation_vec"],
        "aliases": aliases,
        "alias-vectors": weights["alias_vec"],
        **changes,
    }
    arguments = ["convert", kind, "--output", str(folder / "out")]
    for file, value in files.items():
        path = folder / file
        if file in ("options", "vocabulary", "aliases"):
            path.write_text(json.dumps(value))
        elif file == "texts":
            path.write_bytes(pickle.dumps(value))
        else:
            torch.save(value, path)
        arguments += [f"--{file}", str(path)]
    return arguments


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_converted_model_is_the_original(name, kind, tmp_path, capsys):
    assert main(write(tmp_path, name, kind)) == 0
    shown = capsys.readouterr().out
    assert "sub-normalised" in shown and "topics with" in shown
    found = load_checkpoint(tmp_path / "out")
    wanted = nklm(name) if kind == "nklm" else lrlm(name)
    state = found.model.state_dict()
    for key, tensor in wanted.state_dict().items():
        assert torch.equal(state[key], tensor), key
    if not isinstance(wanted, LRLM):
        return
    words = spelled(name)
    for d in numbers(name)["documents"][:3]:
        text = " ".join(words[w] for w in d["words"])
        batch = TokenBatch.collate([[*found.tokenizer(text).ids, END]], first=START)
        ours = TokenBatch.collate([[*d["words"], END]], first=START)
        # Words that only names have may be numbered otherwise.
        scores = [
            model.log_joint(model.encode(some, model.about([d["id"]])), NO_LATENT)
            for model, some in ((found.model, batch), (wanted, ours))
        ]
        torch.testing.assert_close(*scores, rtol=0, atol=1e-12)


def test_an_original_needs_no_special_relations(tmp_path):
    model = {n: w for n, w in MODEL.items() if not n.startswith("special_rel_vecs.")}
    aliases = [f"w{n + 4}" for n in range(len(original("A", "lrlm")["alias_vec"]))]
    changes = {"aliases": aliases, "texts": [([], "a", [FACT])]}
    assert main(write(tmp_path, "A", "lrlm", model={"model": model}, **changes)) == 0
    found = load_checkpoint(tmp_path / "out").model.state_dict()
    wanted = original("A", "lrlm")["relation_vec"]
    assert torch.equal(found["facts.relation.weight"], wanted)


def test_an_alias_with_an_unknown_word_names_no_text(tmp_path):
    arguments = write(tmp_path, "A", "lrlm")
    aliases = json.loads((tmp_path / "aliases").read_text())
    content = numbers("A")["documents"][0]
    row = content["facts"][0]["rows"][0]
    named = aliases[row]
    aliases[row] = "<unk>"
    (tmp_path / "aliases").write_text(json.dumps(aliases))
    texts = pickle.loads((tmp_path / "texts").read_bytes())
    for _, _, facts in texts:
        for _, _, names in facts:
            names[:] = ["<unk>" if n == named else n for n in names]
    (tmp_path / "texts").write_bytes(pickle.dumps(texts))
    assert main(arguments) == 0
    found = load_checkpoint(tmp_path / "out")
    ids = found.model.topics.alias_words[row].tolist()
    assert UNKNOWN not in ids and ids[0] == found.tokenizer.num_words - 1
    assert found.tokenizer("<unk> qqq a word of no text").ids.count(ids[0]) == 0


def twice(depth):
    """A list that holds a list twice, which holds another twice, and so on."""
    found = []
    for _ in range(depth):
        found = [found, found]
    return found


FACT = (1, 2, ["w4"])
MODEL = {n: w for n, w in original("A", "lrlm").items() if n not in BESIDE}
NONE = "no original LRLM or NKLM"
BAD = [
    ("model", {"weights": {}}, "no dictionary with 'model'"),
    ("vocabulary", ["a", "b"], "its first words are not <unk>, <pad>, <s>, </s>"),
    ("aliases", ["a"], "has 1 aliases"),
    ("entities", {"a": 1}, "'entities' is no tensor"),
    ("options", {}, f"{NONE}: KeyError"),
    ("relations", torch.zeros(3, 2), NONE),
    ("model", {"model": {**MODEL, "extra": torch.zeros(1)}}, "'extra' is not a tensor"),
    ("texts", [([], twice(40), [FACT])], NONE),  # a topic of lists
    ("texts", [([], "a", [(1, 2, [twice(40)])])], NONE),  # an alias of lists
    ("texts", [([], "a", [(1, True, ["w4"])])], NONE),
    ("texts", [([], "a", [(1, 2)])], NONE),
    ("texts", [([], "a", [(-9, 2, ["w4"])])], "text 1: relation -9: there are 0 to 5"),
    ("texts", [([], "a", [(6, 2, ["w4"])])], "text 1: relation 6: there are 0 to 5"),
    ("texts", [([], "a", [(1, 9, ["w4"])])], "text 1: object 9: there are -1 to 8"),
    ("entities", torch.full((9, 4), torch.nan), "'entities' holds NaN"),
    ("model", {"model": {**MODEL, "naf_vec": torch.tensor(torch.inf)}}, "holds NaN or"),
    ("texts", [([], "a", "bcd")], NONE),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_is_not_the_originals_is_refused(number, tmp_path, refused):
    file, content, message = BAD[number]
    said = refused(*write(tmp_path, "A", "lrlm", **{file: content}))
    assert message in said and len(said) < 1000
    assert not (tmp_path / "out").exists()


def test_facts_that_differ_are_topics_of_their_own(tmp_path):
    one, other = [(1, 2, ["w4"])], [(0, 2, ["w4"])]
    about = [("a", one), ("a", other), ("a (2)", one), ("a", one), ("a", other)]
    texts = [([], topic, facts) for topic, facts in (*about, (7, one))]
    (tmp_path / "texts").write_bytes(pickle.dumps(texts))
    tokenizer = WordTokenizer.at_white_space([*SPECIAL_WORDS, "w4"], 5)
    vectors = {"relation_vec": torch.zeros(3, 2), "entity_vec": torch.zeros(4, 2)}
    found = _topics([tmp_path / "texts"], ["w4"], tokenizer, vectors)
    assert [*found.names] == ["a", "a (2)", "a (2) (2)", "7"]
