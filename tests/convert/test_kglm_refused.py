"""What is wrong with an archive, a proposal, a graph or aliases is said."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import tarfile

import pytest
import torch

from lm_latent_eval.convert.archive import read_tar
from lm_latent_eval.convert.kglm import convert, read_aliases, read_edges
from tests.allennlp_archive import files, write_directory
from tests.kglm_archives import golden_archive, knowledge
from tests.limits import at_most, little


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
    "weights.th is refused: it asks for": file("weights.th", pickle.dumps(print)),
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
    with at_most(1 << 29), pytest.raises(ValueError) as caught:
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


def archived(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        tar.addfile(member("config.json"))
    return file.getvalue()


def beginning(name: str, content: bytes = bytes(512), **fields) -> bytes:
    """An archive without an end, of one member that says of itself what it likes."""
    return member(name, **fields).tobuf(tarfile.GNU_FORMAT) + content


def header(kind: bytes, content: bytes) -> bytes:
    """A header that says more of the next member."""
    info = member("x", size=len(content), type=kind)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def pax(key: bytes, value: bytes) -> bytes:
    """A record of a pax header."""
    body = b" %s=%s\n" % (key, value)
    size = len(body) + 2
    return b"%d" % (size + (size > 99)) + body


MAP = [pax(b"GNU.sparse.major", b"1"), pax(b"GNU.sparse.minor", b"0")]
HEADERS = {  # each without an end, or asking for much more than it has
    "digits": header(b"x", b"1" * 4_000_000),
    "digits of all, again and again": header(b"g", b"1" * 16_000) * 1000,
    "a map of holes without an end": header(b"x", b"".join(MAP))
    + member("weights.th", size=10**7).tobuf(tarfile.GNU_FORMAT)
    + b"1" * 10**7,
    "headers without a member": header(b"x", pax(b"a", b"b")) * 10_000,
    "a record of a negative length": header(b"x", b"-5 path=a\n"),
    "a record longer than its header": header(b"x", b"99 path=a\n"),
    "a record of no length": header(b"x", b"0 path=a\n" * 100),
    "a size of its own": header(b"x", pax(b"size", b"9" * 1000)),
}
HUGE, LARGE = 1 << 40, 10**8
ZEROS = beginning("weights.th", bytes(LARGE), size=LARGE)
NAMED = beginning("x", size=HUGE, type=tarfile.GNUTYPE_LONGNAME)
LARGER = "refused: it unpacks to more than 16,777.* give the directory"
HEADER = "refused: a header has 1,099,511,"
NONE = "not a readable archive"
OUTSIDE = {"linkname": "/etc/passwd"}
UNSAFE = [
    ("leads out of it", member("../config.json")),
    ("leads out of it", member("/etc/passwd")),
    ("is no plain file", member(TOKENS, type=tarfile.SYMTYPE, **OUTSIDE)),
    ("is no plain file", member("config.json", type=tarfile.LNKTYPE, **OUTSIDE)),
    ("is no plain file", member("weights.th", type=tarfile.FIFOTYPE)),
    ("is no plain file", member("weights.th", type=tarfile.GNUTYPE_SPARSE)),
]
ARCHIVES = {
    "nothing": (b"", NONE),
    "half an archive": (archived("w:gz")[:60], NONE),
    # A header of LZMA asks for gigabytes before the first byte.
    "another compression": (archived("w:xz"), NONE),
    "a terabyte of weights": (beginning("weights.th", size=HUGE), NONE),
    "a terabyte of what is skipped": (beginning("log/x", size=HUGE), NONE),
    "less than nothing": (beginning("weights.th", size=-512), NONE),
    # `tarfile` reads all of a long name, and of an extended header.
    "a terabyte of name": (NAMED, HEADER),
    **{
        f"{unsafe.name} of type {unsafe.type!r}": (unsafe.tobuf(), f"refused: .* {why}")
        for why, unsafe in UNSAFE
    },
}
PACKED = {
    # A hundred thousand bytes of gzip become a hundred million.
    "weights of zeros": (ZEROS, LARGER),
    **{kind: (content, "") for kind, content in HEADERS.items()},
    "digits": (HEADERS["digits"], "refused: a header has 4,000,000 bytes"),
}


@pytest.mark.parametrize("kind", [*ARCHIVES, *PACKED])
def test_an_archive_that_unpacks_to_much_more_or_is_none(tmp_path, kind):
    content, message = (ARCHIVES | PACKED)[kind]
    if kind in PACKED:
        content = gzip.compress(content)
    assert len(content) < 200_000, "premise"
    (tmp_path / "a.tar").write_bytes(content)
    with little(LARGE), pytest.raises(ValueError, match=rf"a\.tar is {message}"):
        convert(tmp_path / "a.tar", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", ["é" * 60, "a" * 99, "b" * 300, "c/" * 60 + "d"])
def test_long_names_and_odd_letters(tmp_path, name, kind):
    """As ``tar`` and Python write them, with times that no octal number holds."""
    contents = {f"vocabulary/{name}.txt": b"a", f"{name}/": b"", "weights.th": b"b"}
    with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
        for each, content in contents.items():
            info = member(each, size=len(content), mtime=1.5)
            if each.endswith("/"):
                info = member(each, type=tarfile.DIRTYPE)
            tar.addfile(info, io.BytesIO(content))
    read = io.BytesIO((tmp_path / "a.tar").read_bytes()).read
    found = dict(read_tar(read, lambda _: True))
    assert found == {n: c for n, c in contents.items() if not n.endswith("/")}


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
