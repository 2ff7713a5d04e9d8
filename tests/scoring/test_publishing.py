"""What is sent to the hub is a checkpoint with a card, and loads as the one here."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, ModelCard

import lm_latent_eval
from lm_latent_eval.manifest import ManifestError
from lm_latent_eval.report.export import hub
from lm_latent_eval.scoring.model import CARD
from tests.report.test_export import result

TEXTS = ["Ada saw the fox .", "a zebra"]


@pytest.fixture
def directory(spelled_directory, tmp_path):
    return shutil.copytree(spelled_directory, tmp_path / "there")


@pytest.fixture
def repositories(monkeypatch):
    """The hub: name -> file -> content."""
    sent: dict[str, dict[str, bytes]] = {}

    def create(self, repo_id, *, private, exist_ok):
        sent.setdefault(repo_id, {})
        return SimpleNamespace(repo_id=repo_id)

    def commit(self, repo_id, operations, *, commit_message, revision, create_pr):
        assert "by lm-latent-eval" in commit_message
        for operation in operations:
            with operation.as_file() as file:
                sent[repo_id][operation.path_in_repo] = file.read()
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit")

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "create_commit", commit)
    return sent


def test_what_is_sent_can_be_loaded(directory, repositories, tmp_path):
    model = lm_latent_eval.load(directory, device="cpu")
    (directory / "notes.txt").write_text("not ours to send")
    url = model.push_to_hub("me/kglm")
    assert url == "https://hub/me/kglm/commit"
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    for name, content in repositories["me/kglm"].items():
        (fetched / name).write_bytes(content)
    assert not (fetched / "notes.txt").exists()
    again = lm_latent_eval.load(fetched, device="cpu")
    assert again.checkpoint.digest == model.checkpoint.digest
    how = {"num_samples": 5, "batch_size": 1}
    assert again.log_likelihood(TEXTS, **how) == model.log_likelihood(TEXTS, **how)


def test_the_card_says_how_and_what(directory, repositories):
    model = lm_latent_eval.load(directory, device="cpu")
    model.push_to_hub("me/kglm")
    text = repositories["me/kglm"][CARD].decode()
    command = (
        "lm_eval --model latent_kglm --model_args pretrained=me/kglm,estimator=auto"
    )
    assert command in text
    assert "Estimator: `auto`" in text
    assert model.checkpoint.digest in text
    assert "| bits_per_byte |" not in text, "nobody knows"
    # Numbers, and what people wrote, stay in it; what is said of use is said once.
    (directory / CARD).write_text(text.replace("# me/kglm", "# me/kglm\n\nOur words."))
    hub.export_card([result()], directory / CARD, "me/kglm")
    model.push_to_hub("me/other")
    card = ModelCard(repositories["me/other"][CARD].decode())
    assert "Our words." in card.text
    assert "| t | bits_per_byte |" in card.text
    assert card.text.count("## How it is scored") == 1
    assert "pretrained=me/other" in card.text
    assert any(r.metric_type == "bits_per_byte" for r in card.data.eval_results)


def test_what_is_no_checkpoint_is_not_sent(directory, repositories):
    model = lm_latent_eval.load(directory, device="cpu")
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"tokenizer\.json"):
        model.push_to_hub("me/kglm")
    with pytest.raises(ValueError, match=r"load\(DIR\)\.push_to_hub"):
        model.checkpoint.model.push_to_hub("me/kglm")
    assert not repositories
