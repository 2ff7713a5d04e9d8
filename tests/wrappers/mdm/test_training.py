"""``train mdm``: what it minimises, what it writes, and how it goes on."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from packaging.version import Version

import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.training.options import MDMSize
from lm_latent_eval.wrappers.mdm import estimators, training
from lm_latent_eval.wrappers.mdm.source import Lengths
from lm_latent_eval.wrappers.mdm.training import negative_bound, train_tokenizer
from tests.means import mean_is
from tests.wrappers.mdm import tiny

LINES = ["the fox saw Ada .", "Ada saw the fox .", "Bo saw a fox", "", "é\tthe  fox"]

SMALL = ("--vocab-size", "270", "--hidden-size", "16", "--num-layers", "1")

trains = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.17"),
    reason="transformers refuses the configuration of the network",
)


def run(folder, *more, epochs=2):
    data = folder / "texts.jsonl"
    lines = [f'{{"text": "{line}"}}\n'.replace("\t", "\\t") for line in LINES * 4]
    data.write_text("".join(lines), encoding="utf-8")
    command = ["train", "mdm", "--data", data, "--dev", data, "--output", folder / "m"]
    main([*map(str, command), *SMALL, "--epochs", str(epochs), *more])
    return folder / "m"


def test_the_loss_is_the_negative_bound_on_average():
    model = tiny.lopsided(tiny.KINDS["bert"]())
    items = [[5, 6, 7], [8, 7], [9, 6, 5, 7]]
    reader = replace(tiny.denoiser(model), shift=1)

    exact = 0.0
    for item in items:
        target = tiny.TargetTokens((tiny.BEGIN,), tuple(item))
        every = tiny.ask(reader, target, estimators.elbo(len(item), 15, None))
        exact -= every.value.log_evidence
    model.training = True  # its dropout is that of BERT's parts, which stay as they are
    torch.manual_seed(0)
    asked = (model, items, tiny.MASK, tiny.BEGIN)
    drawn = torch.stack([negative_bound(*asked) for _ in range(600)])
    mean_is(drawn, exact, 0.05 * exact)
    model.training = False
    one, other = (negative_bound(*asked) for _ in range(2))
    assert one == other, "development losses of epochs compare"


@trains
def test_a_trained_model_scores_strings(tmp_path, capsys):
    directory = run(tmp_path)
    assert capsys.readouterr().out == f"wrote {directory}\n"
    model = lm_latent_eval.load(directory, model="mdm", device="cpu")
    assert json.loads((directory / "config.json").read_text())["logit_shift"] == 1
    estimates = model.log_likelihood([*LINES, "zebra ☃"], num_samples=64)
    lengths = Lengths.load(directory)
    assert lengths.num_texts == len(LINES) * 4
    assert estimates[3].log_evidence == pytest.approx(lengths.log_p(0))
    assert all(e.log_evidence < 0 for e in estimates)
    output = tmp_path / "estimates.jsonl"
    data = tmp_path / "texts.jsonl"
    command = ["estimate", directory, "--model", "mdm", "--data", data]
    main([*map(str, command), "--output", str(output), "--num-samples", "16"])
    assert "bits_per_byte" in capsys.readouterr().out
    assert len(output.read_text().splitlines()) == 1 + len(LINES) * 4


def test_a_transformers_that_refuses_the_network_is_named(
    tmp_path, monkeypatch, capsys
):
    def refuses(**_):
        raise StrictDataclassError

    monkeypatch.setattr(training, "ModernBertConfig", refuses)
    run(tmp_path)
    assert "transformers>=5.17" in capsys.readouterr().err


def test_its_tokens_spell_every_string():
    tokenizer = train_tokenizer(LINES, 270)
    for text in (*LINES, "zebra ☃\n\x00 <mas k>", "  a  "):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert tokenizer.mask_token_id not in ids


def test_sizes_that_cannot_be_are_named():
    none = dict.fromkeys(("num_layers", "num_heads", "max_length"), 0)
    for name, size in {"vocab_size": 100, "hidden_size": 10, **none}.items():
        with pytest.raises(ValueError, match=f"{name}={size}: expected"):
            MDMSize(**{name: size})
