"""Directories of published models, as transformers loads them.

``python -m tests.published.folders OUT`` writes all that there are, from the folder
that ``make published`` downloads to (``LATENT_EVAL_PUBLISHED`` is another).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import sys
from pathlib import Path

from tests.conftest import PROJECT

FOLDER = Path(
    os.environ.get("LATENT_EVAL_PUBLISHED", PROJECT / ".cache" / "published")
).absolute()
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAY"
    "LQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
"""Variable domain of trastuzumab's heavy chain."""
LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQP"
    "EDFATYYCQQHYTTPPTFGQGTKVEIK"
)
"""Of its light chain."""
SENTENCES = (
    "他 明天 上午 坐 火车 去 北京 开会",
    "我们 今天 去 学校",
    "图书馆 里 有 很多 关于 历史 的 书",
    "小明 把 昨天 买 的 苹果 都 吃 完 了",
    "老师 告诉 学生 明天 不用 来 上课",
    "这 条 河 的 水 很 干净",
)
"""Chinese, by words."""
ENGLISH = (
    "the cat sat on the mat",
    "she will fly to london tomorrow morning",
    "the library has many books about history",
    "he ate all the apples that he bought yesterday",
    "the teacher told the students not to come",
    "aaron's aardvark was last seen in zurich",
)
"""In lower case, as the model knows words."""
ANTIBERTY = "python/antiberty/trained_models"
IGLM = "python/iglm/trained_models"
KENLM = "debian/usr/lib/x86_64-linux-gnu/libime/zh_CN.lm"
SPHINX = "python/pocketsphinx/model/en-us/en-us.lm.bin"
TOKENIZERS = {
    "Llama 3": "npm/llama3/models",
    "Qwen 3": "npm/qwen3/models",
    "Gemma 3": "npm/gemma3/models",
    "Mistral v1": "python/mistral_common/data/tokenizer.model.v1",
    "Mistral v3": (
        "python/mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"
    ),
    "Mistral tekken": "python/mistral_common/data/tekken_240718.json",
}


def spaced(residues: str) -> str:
    """Write a protein as the models' tokenizers read it."""
    return " ".join(residues)


def antibody(models: Path, name: str, directory: Path) -> Path:
    """Write a model of antibody sequences: weights, configuration, tokenizer.

    The tokenizer is what both packages build in their code.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in (f"{name}/config.json", f"{name}/pytorch_model.bin", "vocab.txt"):
        shutil.copy(models / file, directory)
    how: dict[str, object] = {"tokenizer_class": "BertTokenizer"}
    how["do_lower_case"] = False
    # Of IgLM: chains and species, which its code gives as tokens and not as text.
    words = (models / "vocab.txt").read_text(encoding="utf-8").split()
    if marks := [word for word in words[5:] if word.startswith("[")]:
        how["additional_special_tokens"] = marks
    (directory / "tokenizer_config.json").write_text(json.dumps(how))
    return directory


def tokenizer(found: Path, directory: Path) -> Path:
    """Return the directory of a tokenizer under the names that transformers knows."""
    if found.is_dir():
        return found
    directory.mkdir(parents=True, exist_ok=True)
    name = "tekken.json" if found.suffix == ".json" else "tokenizer.model"
    shutil.copy(found, directory / name)
    return directory


def sphinx_arpa(found: Path, directory: Path) -> Path:
    """Write pocketsphinx's trigrams as KenLM reads them.

    pocketsphinx 5.1.1 crashes when it writes this file, whose header counts six bigrams
    more than there are. So a copy is written that has the right count and none of the
    zeros in their place, and the package writes that one, under a line of its own that
    KenLM refuses.
    """
    from pocketsphinx import Config, LogMath, NGramModel

    content = found.read_bytes()
    header = len(b"Trie Language Model") + 1
    words, counted, trigrams = struct.unpack_from("<3I", content, header)
    # Unigrams follow the header's four numbers and three tables of 2^16 quantized
    # values; behind the last one is a record that says where the bigrams end.
    begin = header + 4 * 4 + 3 * 4 * 2**16 + 12 * (words + 1)
    (bigrams,) = struct.unpack_from("<I", content, begin - 4)
    # A bigram's bits: a word, two quantized values, where its trigrams begin.
    bits = words.bit_length() + 2 * 16 + trigrams.bit_length()
    end, padded = (
        begin + ((many + 1) * bits + 7) // 8 + 8 for many in (bigrams, counted)
    )
    if any(content[end:padded]):
        raise ValueError(f"{found}: bigrams where zeros were expected")
    mended, written = directory / "en-us.lm.bin", directory / "pocketsphinx.arpa"
    count = struct.pack("<I", bigrams)
    mended.write_bytes(
        content[: header + 4] + count + content[header + 8 : end] + content[padded:]
    )
    unit = LogMath()  # the model does not keep it: without a name here it is freed
    NGramModel(Config(), unit, str(mended)).write(str(written))
    mended.unlink()
    _, data, ngrams = written.read_bytes().partition(b"\\data\\")
    written.write_bytes(data + ngrams)
    return written


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(directory: Path) -> None:
    """Write every model that is there and its texts, and say what its weights are."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, models, kind in (
        ("antiberty", ANTIBERTY, "AntiBERTy_md_smooth"),
        ("iglm", IGLM, "IgLM"),
        ("iglm-s", IGLM, "IgLM-S"),
    ):
        if (FOLDER / models).is_dir():
            written = antibody(FOLDER / models, kind, directory / name)
            print(written, sha256(written / "pytorch_model.bin"))
    for ngrams in (KENLM, SPHINX):
        if (FOLDER / ngrams).exists():
            print(FOLDER / ngrams, sha256(FOLDER / ngrams))
    if (FOLDER / SPHINX).exists():
        written = sphinx_arpa(FOLDER / SPHINX, directory)
        print(written, sha256(written))
    for name, texts in (
        ("antibodies", [spaced(HEAVY), spaced(LIGHT)]),
        ("characters", [spaced(text.replace(" ", "")) for text in SENTENCES]),
        ("words", SENTENCES),
        ("english", ENGLISH),
    ):
        lines = "".join(f"{text}\n" for text in texts)
        (directory / f"{name}.txt").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
