"""Topic models of other libraries: what their files ask to run is not run."""

import copy
import pickle

import numpy as np
import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.convert.lda import array, convert, read_npy
from lm_latent_eval.convert.unpickling import (
    CONTAINERS,
    PickleError,
    StandIn,
    load_pickle,
)
from lm_latent_eval.models.checkpoint import load_checkpoint
from tests.convert.hostile import Runs
from tests.limits import at_most

TEXTS = ["the fox saw the fox", "the sky is blue", "a fox and the sky", "blue sky fox"]
LITTLE = 1 << 28
TOPICS = "pip install 'lm-latent-eval[topics]'"


@pytest.fixture(scope="module")
def pipeline():
    return fitted(TEXTS)


def fitted(texts, **how):
    from sklearn.decomposition import LatentDirichletAllocation
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import Pipeline

    words, lda = CountVectorizer(**how), LatentDirichletAllocation(3, random_state=0)
    return Pipeline([("words", words), ("lda", lda)]).fit(texts)


@pytest.fixture
def gensim_model():
    from gensim import corpora, models

    words = [text.split() for text in TEXTS]
    dictionary = corpora.Dictionary(words)
    bags = [dictionary.doc2bow(text) for text in words]
    return models.LdaModel(bags, 2, dictionary, alpha="auto", random_state=0)


@pytest.fixture(scope="module")
def tomotopy_file(tmp_path_factory):
    tomotopy = pytest.importorskip("tomotopy", reason=TOPICS)
    model = tomotopy.LDAModel(k=2, seed=1)
    for text in TEXTS:
        model.add_doc(text.split())
    model.train(20, workers=1)
    path = tmp_path_factory.mktemp("tomotopy") / "lda.bin"
    model.save(str(path), False)
    return path


# -- what is good is read ------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pipelines_of_every_protocol_are_read(tmp_path, pipeline, protocol):
    (tmp_path / "model").write_bytes(pickle.dumps(pipeline, protocol))
    found = convert(tmp_path / "model", tmp_path / "topics", library="scikit-learn")
    lda = pipeline.steps[1][1]
    expected = lda.components_ / lda.components_.sum(1, keepdims=True)
    np.testing.assert_allclose(found.log_phi()[:, 4:].exp(), expected, rtol=1e-12)
    np.testing.assert_allclose(found.alpha, [1 / 3] * 3, rtol=1e-12)
    loaded = load_checkpoint(tmp_path / "topics")
    assert loaded.encoder()("The FOX").ids, "in lower case"


@pytest.mark.parametrize("apart", [["sstats", "alpha", "eta"], []])
def test_gensim_may_keep_arrays_in_files_of_their_own(tmp_path, gensim_model, apart):
    expected = gensim_model.get_topics()
    gensim_model.save(str(tmp_path / "model"), separately=apart)
    gensim_model.state.save(str(tmp_path / "model.state"), separately=apart)
    assert (tmp_path / "model.state.sstats.npy").exists() == bool(apart), "premise"
    found = convert(tmp_path / "model", tmp_path / "topics", library="gensim")
    np.testing.assert_allclose(found.log_phi()[:, 4:].exp(), expected, rtol=1e-5)
    np.testing.assert_allclose(found.alpha, gensim_model.alpha, rtol=1e-5)


ARRAYS = (
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(6, dtype=">i2"),
    np.float32(2.5),
    np.arange(3) > 1,
)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_come_out_as_they_went_in(tmp_path, protocol):
    for each in ARRAYS:
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(each, protocol))
        np.testing.assert_array_equal(array(from_numpy(tmp_path / "a.pkl")), each)


def from_numpy(path):
    names = {**CONTAINERS, "_codecs.encode": StandIn}
    return load_pickle(path, names, packages=("numpy",))


# -- what is not is refused ----------------------------------------------------------


def refused(path, library, **options):
    with at_most(LITTLE), pytest.raises(ValueError, match=path.name) as caught:
        convert(path, path.with_name("topics"), library=library, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_that_hold_no_topics_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is missing"):
        convert(tmp_path / "none", tmp_path, library="scikit-learn")
    (tmp_path / "other").write_bytes(pickle.dumps({"no": "pipeline"}))
    assert "holds no topic model" in refused(tmp_path / "other", "scikit-learn")


OTHERS = {
    "ngram_range=": lambda words, _: words.set_params(ngram_range=(1, 2)),
    "analyzer=": lambda words, _: words.set_params(analyzer="char"),
    "binary=": lambda words, _: words.set_params(binary=True),
    "it asks for posix.system": lambda _, all: setattr(all, "memory", Runs("sprung")),
}


@pytest.mark.parametrize("said", OTHERS)
def test_other_pipelines_are_refused_and_their_code_is_not_run(
    tmp_path, monkeypatch, pipeline, said
):
    changed = copy.deepcopy(pipeline)
    OTHERS[said](changed.steps[0][1], changed)
    (tmp_path / "model").write_bytes(pickle.dumps(changed))
    monkeypatch.chdir(tmp_path)
    assert said in refused(tmp_path / "model", "scikit-learn")
    assert not (tmp_path / "sprung").exists()


def test_words_that_are_cut_otherwise_are_named(tmp_path, capsys):
    made = fitted(["the well known fox"], token_pattern=r"\w+ known|\w+")
    (tmp_path / "model").write_bytes(pickle.dumps(made))
    out = tmp_path / "topics"
    places = ["--model", str(tmp_path / "model"), "--output", str(out)]
    assert main(["convert", "lda", "--from", "scikit-learn", *places]) == 0
    assert "1 words such as 'well known' are in none" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["", ".state", ".id2word", ".state.sstats.npy"])
def test_code_in_any_file_of_gensim_is_not_run(tmp_path, gensim_model, part):
    gensim_model.save(str(tmp_path / "model"))
    gensim_model.state.save(str(tmp_path / "model.state"), separately=["sstats"])
    sprung, path = tmp_path / "sprung", tmp_path / f"model{part}"
    assert path.exists(), "premise"
    if part.endswith(".npy"):
        np.save(path, np.array([Runs(sprung)], object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(Runs(sprung)))
    refused(tmp_path / "model", "gensim")
    assert not sprung.exists()


NPY = {
    "more than there is": b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,)}"
    % (1 << 40),
    "a negative size": b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (8,)}",
    "strings": b"{'descr': '|S8', 'fortran_order': False, 'shape': (8,)}",
    "code": b"__import__('os').mkdir('exploded')",
    "nested": b"[" * 5000,
}


@pytest.mark.parametrize("kind", NPY)
def test_npy_files_that_hold_something_else(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path, header = tmp_path / "a.npy", NPY[kind] + b"\n"
    size = len(header).to_bytes(2, "little")
    path.write_bytes(b"\x93NUMPY\x01\0" + size + header + bytes(64))
    with at_most(LITTLE), pytest.raises(PickleError, match=r"a\.npy is"):
        read_npy(path)
    assert not (tmp_path / "exploded").exists()


def numpy_array(shape=(2,), code="f8", order="<", numbers=bytes(16)):
    """A pickle of an array that NumPy would not write."""

    class Odd:
        def __reduce__(self):
            empty = np._core.multiarray._reconstruct
            return empty, (np.ndarray, (0,), b"b"), (1, shape, Type(), False, numbers)

    class Type:
        def __reduce__(self):
            state = (3, order, None, None, None, -1, -1, 0)
            return np.dtype, (code, False, True), state

    return pickle.dumps(Odd())


BAD_ARRAYS = {
    "more than there is": {"shape": (1 << 40,)},
    "a negative size": {"shape": (-2,)},
    "three axes": {"shape": (1, 1, 2)},
    "a size that is none": {"shape": "2"},
    "objects": {"code": "O8"},
    "an order that is none": {"order": "x"},
    "numbers in words": {"numbers": "0" * 16},
    "too few": {"numbers": bytes(15)},
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_arrays_that_are_none(tmp_path, kind):
    (tmp_path / "a.pkl").write_bytes(numpy_array())
    assert array(from_numpy(tmp_path / "a.pkl")).tolist() == [0.0, 0.0], "premise"
    (tmp_path / "a.pkl").write_bytes(numpy_array(**BAD_ARRAYS[kind]))
    found = from_numpy(tmp_path / "a.pkl")
    with at_most(LITTLE), pytest.raises(PickleError):
        array(found)


# -- tomotopy ------------------------------------------------------------------------


def test_files_of_tomotopy_have_to_be_trusted(tmp_path, tomotopy_file):
    with pytest.raises(ValueError, match="give --trust"):
        convert(tomotopy_file, tmp_path / "topics", library="tomotopy")


def test_the_pickle_in_a_file_of_tomotopy_is_not_run(
    tmp_path, monkeypatch, tomotopy_file
):
    """Its topics are read all the same."""
    tomotopy = pytest.importorskip("tomotopy", reason=TOPICS)
    good = tomotopy_file.read_bytes()
    start = good.index(b"\x80\x04\x95")
    size = int.from_bytes(good[start - 4 : start], "little")
    code = pickle.dumps(Runs("sprung"))  # in whichever directory
    bad = good[:start] + code.ljust(size, b".") + good[start + size :]
    (tmp_path / "lda.bin").write_bytes(bad)
    monkeypatch.chdir(tmp_path)
    found = convert(
        tmp_path / "lda.bin", tmp_path / "t", library="tomotopy", trust=True
    )
    assert not (tmp_path / "sprung").exists()
    model = tomotopy.LDAModel.load(str(tmp_path / "lda.bin"))
    assert (tmp_path / "sprung").exists(), "premise: tomotopy runs it"
    theirs = [model.get_topic_word_dist(k) for k in range(2)]
    np.testing.assert_allclose(found.log_phi()[:, 4:].exp(), theirs, rtol=1e-5)


DAMAGE = {
    "another program's": lambda good: b"the fox",
    "cut, which is read without end": lambda good: good[: len(good) * 4 // 5],
    "many words, which end the process": lambda good: good.replace(
        b"\x03\0\0\0the", b"\xff\xff\xff\x7fthe"
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_of_tomotopy_is_refused(tmp_path, tomotopy_file, kind):
    good = tomotopy_file.read_bytes()
    (tmp_path / "lda.bin").write_bytes(bad := DAMAGE[kind](good))
    assert bad != good, "premise"
    said = refused(tmp_path / "lda.bin", "tomotopy", trust=True)
    assert "holds no topic model of tomotopy (its reader" in said
