"""What is wrong with an archive, a proposal, a graph or aliases is said."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import tarfile

import pytest
import torch

from lm_latent_eval.convert.archive import read_archive
from lm_latent_eval.convert.kglm import convert, read_aliases, read_edges
from tests.allennlp_archive import files, write_directory, write_tar
from tests.kglm_archives import golden_archive, knowledge


def option(**changed):
    return lambda config, weights, words: config["model"].update(changed)


def weight(name, tensor):
    return lambda config, weights, words: weights.update({name: tensor})


def word(old, *new):
    """Put words in the place of one."""

    def change(config, weights, words):
        place = words.index(old)
        words[place : place + 1] = new

    return change


def file(name, content):
    return lambda config, weights, words: {name: content}


TOKENS = "vocabulary/tokens.txt"
NAN, MORE, THREE = torch.full((1,), torch.nan), torch.zeros(1), torch.zeros(3)
TIED = torch.zeros(26, 6)
DAMAGED = {
    "lacks config.json": file("config.json", None),
    "lacks vocabulary/relations.txt": file("vocabulary/relations.txt", None),
    "config.json is no configuration": file("config.json", b"[" * 100_000),
    "of type 'kglm-disc', not 'kglm'": option(type="kglm-disc"),
    "config.json: cutoff is True": option(cutoff=True),
    "weights.th is refused: it is damaged": file("weights.th", pickle.dumps(print)),
    "tensor '_fc_copy.bias' holds NaN": weight("_fc_copy.bias", NAN),
    "has no matrix _token_emb": weight("_token_embedder.weight", torch.ones(())),
    "'_fc_more' is not a tensor": weight("_fc_more", MORE),
    "is not '_token_embedder.weight'": weight("_fc_generate.weight", TIED),
    "tokens.txt has 27 entries, the padding included, but _token_": word(
        "w5", "w5", "more"
    ),
    "relations.txt has 8 entries, the padding included, but _relation_": weight(
        "_relation_embedder.weight", torch.zeros(9, 5)
    ),
    "has (3,) as our generative.words.copy.bias": weight("_fc_copy.bias", THREE),
    "tokens.txt lists 'w4' twice": word("w5", "w4"),
    "tokens.txt lacks @@END@@": word("@@END@@", "end"),
    "tokens.txt is not @@UNKNOWN@@": word("@@UNKNOWN@@", "unk"),
    "tokens.txt is not UTF-8": file(TOKENS, b"@@UNKNOWN@@\n\xff5"),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_what_is_wrong_with_an_archive_is_said(tmp_path, message):
    config, weights, vocabulary = golden_archive("B")
    instead = DAMAGED[message](config, weights, vocabulary["tokens"]) or {}
    contents = (files(config, weights, vocabulary) | instead).items()
    kept = {name: content for name, content in contents if content is not None}
    archive = write_directory(tmp_path / "a", kept)
    with pytest.raises(ValueError) as caught:
        convert(archive, tmp_path / "out", **knowledge(tmp_path))
    assert str(archive) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value), "torch's advice is dangerous"
    assert not (tmp_path / "out").exists()


def member(name: str, **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def packed(mode: str) -> bytes:
    """An archive without what a model needs."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        tar.addfile(member("config.json"))
    return file.getvalue()


def other_sum(content: bytes) -> bytes:
    """Change a byte of gzip's checksum, which is behind the archive."""
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


OUTSIDE = {"linkname": "/etc/passwd"}
NONE, LACKS = "is not a readable archive", "lacks "
ARCHIVES = {
    "nothing": (b"", NONE),
    "half an archive": (packed("w:gz")[:60], NONE),
    "another checksum": (other_sum(packed("w:gz")), NONE),
    "no archive": (b"the fox " * 200, NONE),
    "a cut member": (member("weights.th", size=9000).tobuf() + bytes(600), NONE),
    "another archive": (packed("w:gz"), f"{LACKS}weights.th"),
    **{
        f"{odd.name} of type {odd.type!r}": (odd.tobuf() + bytes(1024), message)
        for odd, message in (
            (member("../config.json"), LACKS),
            (member("/etc/passwd"), LACKS),
            (member("config.json", type=tarfile.SYMTYPE, **OUTSIDE), NONE),
            (member("config.json", type=tarfile.LNKTYPE, **OUTSIDE), NONE),
            (member("weights.th", type=tarfile.FIFOTYPE), LACKS),
        )
    },
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_that_is_damaged_or_none_is_refused(tmp_path, kind):
    content, message = ARCHIVES[kind]
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.tar {message}"):
        convert(tmp_path / "a.tar", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "b.tar", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"], (
        "nothing is unpacked"
    )


def test_a_damaged_header_loses_no_member(tmp_path):
    """Python ends an archive in silence where a header's sum is wrong."""
    path = write_tar(tmp_path / "a.tar.gz", files(*golden_archive("B")))
    content = bytearray(gzip.decompress(path.read_bytes()))
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    assert "vocabulary" in last.name, "premise: a model may lack it"
    content[last.offset] ^= 1
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(ValueError, match=r"b\.tar is not a readable archive .*header"):
        read_archive(tmp_path / "b.tar")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", ["é" * 60, "a" * 99, "b" * 300])
def test_long_names_and_odd_letters(tmp_path, name, kind):
    """As ``tar`` and Python write them, with times that no octal number holds."""
    config, weights, vocabulary = golden_archive("B")
    contents = files(config, weights, vocabulary | {name: ["", "@@UNKNOWN@@"]})
    with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
        for each, content in contents.items():
            info = member(f"./{each}", size=len(content), mtime=1.5)
            tar.addfile(info, io.BytesIO(content))
    assert read_archive(tmp_path / "a.tar").vocabulary[name][1:] == ["@@UNKNOWN@@"]


def over_others(namespace: str) -> dict[str, bytes]:
    """A proposal whose vocabulary has its last two entries the other way round."""
    config, weights, vocabulary = golden_archive("A", proposal=True)
    *entries, one, other = vocabulary[namespace]
    return files(config, weights, vocabulary | {namespace: [*entries, other, one]})


TWINS = {
    "of type 'kglm', not 'kglm-disc'": [files(*golden_archive("A"))],
    "has token_embedding_dim=6, but": [files(*golden_archive("B", proposal=True))],
    "is a second peeking proposal": [files(*golden_archive("A", proposal=True))] * 2,
    **{
        f"vocabulary/{name}.txt is not that of": [over_others(name)]
        for name in ("tokens", "entity_ids", "relations")
    },
}


@pytest.mark.parametrize("message", TWINS)
def test_proposals_of_another_model(tmp_path, message):
    model = write_directory(tmp_path / "p", files(*golden_archive("A")))
    proposals = [
        write_directory(tmp_path / f"q{i}", content)
        for i, content in enumerate(TWINS[message])
    ]
    with pytest.raises(ValueError) as caught:
        convert(model, tmp_path / "out", proposals=proposals, **knowledge(tmp_path))
    assert message in str(caught.value)
    assert str(proposals[-1]) in str(caught.value)


READS = {
    read_edges: ([], {"Q1": [("P1",)]}, {"Q1": [("P1", 2)]}),
    read_aliases: ({1: []}, {"Q1": "Ada"}, {"Q1": [["Ada", 1]]}),
}
# To show all of a list within a list, very many times, would never end.
DEEP = b"\x80\x02}X\x02\0\0\0Q1" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"s."
TABLES = [
    *((read, "a.pkl", pickle.dumps(odd)) for read in READS for odd in READS[read]),
    *((read, "a.pkl", DEEP) for read in READS),
    *((read, "a.json", b"[" * 100_000) for read in READS),
    *((read, "a.json", b'{"Q1": ' + b"[" * 900 + b"]" * 900 + b"}") for read in READS),
]


@pytest.mark.parametrize(("read", "name", "content"), TABLES)
def test_tables_of_another_kind(tmp_path, read, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    said = r"(: .* has .*; expected a list of| holds no table| is not JSON of a table)"
    with pytest.raises(ValueError, match=re.escape(str(path)) + said) as caught:
        read(path)
    assert len(str(caught.value)) < 500
