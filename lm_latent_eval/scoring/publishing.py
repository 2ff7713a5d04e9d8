"""Upload of a checkpoint to the hub, with a model card."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    HfApi,
    ModelCard,
    ModelCardData,
)

from lm_latent_eval import manifest
from lm_latent_eval.models import MODELS
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.options import ScoringOptions

CARD = "README.md"


def push_to_hub(
    checkpoint: Checkpoint,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: str | bool | None = None,
) -> str:
    """Send all that loading needs, in one commit.

    The card is the checkpoint's ``README.md``, or a new one; numbers come into it by
    ``lm-latent-eval export RESULTS --to model-card --output DIR/README.md``.

    Args:
        checkpoint: What was loaded.
        repo_id: ``name/model``, made if it is not there.
        private: Whether a new repository is.
        revision: Branch to send to; None is ``main``.
        create_pr: Propose instead of changing the branch.
        token: Of the hub; None is the one that is logged in.

    Returns:
        The address of the commit.

    Raises:
        ManifestError: If the directory is not what its manifest says.
    """
    manifest.verify(checkpoint.directory)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    there = manifest.files(checkpoint.directory)
    files = [CommitOperationAdd(path.name, path) for path in there]
    text = str(card(checkpoint, repo_id)).encode()
    commit = api.create_commit(
        repo_id,
        [*files, CommitOperationAdd(CARD, text)],
        commit_message=f"{checkpoint.name} {checkpoint.digest}, by lm-latent-eval",
        revision=revision,
        create_pr=create_pr,
    )
    return str(commit.commit_url)


def card(checkpoint: Checkpoint, repo_id: str) -> ModelCard:
    """Return the card of a checkpoint: how it is scored, beside what it says already.

    Args:
        checkpoint: Whose card.
        repo_id: Where it will be.
    """
    found = read_card(checkpoint.directory / CARD, repo_id)
    put_section(found, "lm-latent-eval: use", _use(checkpoint, repo_id))
    return found


def read_card(path: Path, name: str) -> ModelCard:
    """Return a model card that is there, or begin one.

    Args:
        path: Of the card.
        name: What a new one calls the model.
    """
    if path.exists():
        there: ModelCard = ModelCard.load(path)
        return there
    data = ModelCardData(tags=["latent-variable-model"])
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {name}\n")


def put_section(found: ModelCard, mark: str, text: str) -> None:
    """Write a section of a card, in the place of what it was before if it was there.

    Args:
        found: The card.
        mark: The comment that begins the section, and with a slash ends it.
        text: What it says.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    section = f"{begin}\n{text}\n{end}"
    between = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    found.text = (
        between.sub(lambda _: section, found.text)
        if between.search(found.text)
        else f"{found.text.rstrip()}\n\n{section}\n"
    )


def _use(checkpoint: Checkpoint, repo_id: str) -> str:
    model, options = checkpoint.model, ScoringOptions()
    estimator = model.estimators[0]
    name = f"latent_{checkpoint.name}" if checkpoint.name in MODELS else "latent"
    arguments = f"pretrained={repo_id}"
    drawn = "Nothing is drawn."
    if estimator != "exact":
        arguments += f",estimator={estimator},num_samples={options.num_samples}"
        drawn = (
            f"The default is {options.num_samples} samples a text of the proposal "
            f"`{model.proposal_names[0]}`; there are also "
            f"{', '.join(f'`{n}`' for n in model.proposal_names[1:]) or 'no others'}."
        )
    return f"""## How it is scored

A `{checkpoint.name}` model with latents, for
[lm-latent-eval](https://pypi.org/project/lm-latent-eval/); digest of its files
`{checkpoint.digest}`. Estimator: `{estimator}`. {drawn}

    lm_eval --model {name} --model_args {arguments} --tasks wikitext"""
