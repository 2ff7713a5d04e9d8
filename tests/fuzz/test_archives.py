"""Archives of others: what they hold, or a refusal, in little memory.

What may stand in a pickle, a file of torch or an archive of AllenNLP has tests in
``tests/convert``.
"""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.convert.archive import read_archive
from lm_latent_eval.convert.rnng import read
from lm_latent_eval.text.words import SPECIAL_WORDS
from tests import kglm_archives
from tests.allennlp_archive import files, write_tar
from tests.fuzz.law import Refused, outcome, same, share
from tests.memory_limit import at_most

MEMORY = 768 << 20
"""What a file of a few kilobytes may take, in bytes."""
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "insert", "repeat")),
        st.floats(0, 1),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


def edited(content: bytes, edits) -> bytes:
    """Return a damaged copy."""
    for how, where, byte in edits:
        at = round(where * max(len(content) - 1, 0))
        head, tail = content[:at], content[at:]
        if how == "flip":
            tail = bytes([tail[0] ^ (1 << byte % 8)]) + tail[1:] if tail else b""
        elif how == "cut":
            tail = tail[byte:]
        elif how == "insert":
            tail = bytes([byte]) + tail
        else:
            tail = tail[:byte] + tail
        content = head + tail
    return content


def model(*, zipped: bool) -> bytes:
    """Return what the original program saves, around a layer."""
    layer = torch.nn.Linear(3, 2, bias=False)
    layer.weight.data = torch.arange(6.0).view(2, 3) / 7
    content = {"model": layer, "idx2word": dict(enumerate(SPECIAL_WORDS))}
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


WEIGHTS = {"weight": (torch.arange(6.0).view(2, 3) / 7).tolist()}


@pytest.mark.parametrize("zipped", [True, False])
@share(2)
@given(edits=EDITS)
def test_a_damaged_model_is_refused_or_the_same(tmp_path_factory, zipped, edits):
    """A row of pickles, as torch saved before, has no sums that would tell."""
    path, content = tmp_path_factory.getbasetemp() / "model.pt", model(zipped=zipped)

    def weights():
        with at_most(MEMORY):
            return {name: tensor.tolist() for name, tensor in read(path)[0].items()}

    path.write_bytes(content)
    assert weights() == WEIGHTS, "premise"
    path.write_bytes(edited(content, edits))
    found = outcome(weights)
    assert not isinstance(found, Refused) or path.name in found.reason
    if zipped:
        same("a damaged archive", found, WEIGHTS)


# -- AllenNLP's ----------------------------------------------------------------------


def described(path):
    """Return what an archive holds, weights as lists."""
    archive = read_archive(path)
    found = {name: t.tolist() for name, t in archive.weights.items()}
    return archive.config, found, archive.vocabulary


@pytest.fixture(scope="module")
def allennlp(tmp_path_factory):
    """Return a golden archive, and what is in it."""
    contents = files(*kglm_archives.golden_archive("A"))
    path = write_tar(tmp_path_factory.mktemp("allennlp") / "model.tar.gz", contents)
    return path.read_bytes(), described(path)


@share(1)
@given(edits=EDITS)
def test_a_damaged_tar_is_refused_or_the_same(tmp_path_factory, allennlp, edits):
    path = tmp_path_factory.getbasetemp() / "model.tar.gz"
    path.write_bytes(edited(allennlp[0], edits))

    def found():
        with at_most(MEMORY):
            return described(path)

    same("a damaged tar.gz", outcome(found), allennlp[1])
