"""``load`` and ``LatentModel``: a checkpoint as a Python object, and its upload."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import (
    CommitOperationAdd,
    HfApi,
    ModelCard,
    ModelCardData,
)

from lm_latent_eval import manifest
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.models import MODELS
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.options import at_least_0, whole
from lm_latent_eval.scoring.answer import Answer, MissedTextsError, noting_progress
from lm_latent_eval.scoring.generation import MOST_TOKENS, GenerationOptions
from lm_latent_eval.scoring.inside import surprisal
from lm_latent_eval.scoring.interface import TextModel, TextScorer
from lm_latent_eval.scoring.opening import open_model, scorer_of
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    ScoringOptions,
    parse_device,
    parse_dtype,
)
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import checked_strings

if TYPE_CHECKING:
    from pandas import DataFrame

_DEFAULTS = {"temperature": 1.0, "seed": 0, "max_samples": 100_000, "bounds": "lower"}
"""Defaults of these arguments: those of ``ScoringOptions``,
of which another ``TextModel`` need not know all."""
KEEPING = "`lm-latent-eval estimate --output` keeps each as soon as it is there"


@dataclass(frozen=True)
class LatentModel:
    """A latent language model with its vocabulary, ready to score strings.

    Example:
        >>> import lm_latent_eval
        >>> from lm_latent_eval.demo import CHECKPOINT
        >>> model = lm_latent_eval.load(CHECKPOINT)
        >>> [estimate] = model.log_likelihood(
        ...     ["It is known for its plums and its gardeners."], num_samples=50
        ... )
        >>> estimate.estimator, estimate.num_tokens, str(estimate.bound)
        ('dpf', 11, 'stochastic lower')
        >>> 0 < estimate.stderr < 0.5
        True
    """

    opened: Checkpoint | TextModel

    @property
    def checkpoint(self) -> Checkpoint:
        """Model, vocabulary and digest of a model that is scored by latents.

        Raises:
            ValueError: If it is a model that scores strings its own way.
        """
        if not isinstance(self.opened, Checkpoint):
            kind = type(self.opened).__name__
            raise ValueError(
                f"a {kind} scores strings its own way, without latents: use "
                "log_likelihood or generate"
            )
        return self.opened

    def log_likelihood(
        self,
        texts: Sequence[str],
        *,
        contexts: Sequence[str] | None = None,
        num_samples: int | None = None,
        estimator: str | None = None,
        proposal: str | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        unk: str | None = None,
        target_stderr: float | None = None,
        max_samples: int = 100_000,
        bounds: str = "lower",
        batch_size: int | str | None = "auto",
        progress: bool = False,
        **more: Any,
    ) -> list[Estimate]:
        """Estimate log p of texts, their ends included, or of continuations.

        Args:
            texts: N strings.
            contexts: N strings that they follow; then no end is counted, and the
                estimates are differences, which bound nothing. Texts after equal
                contexts share those contexts' draws, so they are compared fairly.
            num_samples: K, the samples a text (of ``auto`` at least 20) or the width of
                a beam. Default: 100.
            estimator: How the sum over the latents is estimated. One of ``auto``,
                ``mixed``, ``is``, ``beam``, ``dpf``, ``smc``, ``ais``, ``exact``. None:
                the first that the model has.
            proposal: What latents are drawn from, one that the checkpoint has. None:
                the first that the model has.
            temperature: Divides the proposal's scores; above 1 flattens it. From 0.001
                to 1000: beyond, rounding would decide. Default: 1.0.
            seed: Of all random numbers. Default: 0.
            unk: What an unknown word costs beside p(unknown): its spelling
                (``spelled``), 1 / number of unknown types (``penalized``) or nothing
                (``closed``). None: `spelled` with a character model, else `penalized`
                or `closed`.
            target_stderr: Choose K a text, from a pilot of ``num_samples``, for this
                Monte Carlo standard error of its log-likelihood in nats; the number
                comes from fresh draws. None: K is given.
            max_samples: The most that ``target_stderr`` may choose. Default: 100000.
            bounds: ``lower``, or ``both`` for an upper bound of whole texts as well,
                which takes as many draws again. Default: lower.
            batch_size: Texts scored together, or ``auto``: as many as memory allows.
                Moves no number but by rounding. Default: auto.
            progress: Show a progress bar.
            **more: Options of a model that scores strings its own way.

        Returns:
            N estimates, in nats, in the order of the texts.

        Raises:
            MissedTextsError: If no latent was found of some texts; its ``answers`` have
                the estimates of the others.
            ValueError: If a setting is impossible or a text cannot be scored.
            TypeError: If ``texts`` or ``contexts`` is no list of strings.
        """
        texts = checked_strings(texts)
        if contexts is not None:
            contexts = checked_strings(contexts, "contexts")
        if contexts is not None and target_stderr is not None:
            raise ValueError("target_stderr is for whole texts: give num_samples")
        if contexts is not None and len(contexts) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(contexts)} contexts")
        options = {
            "num_samples": num_samples,
            "estimator": estimator,
            "proposal": proposal,
            "temperature": temperature,
            "seed": seed,
            "unk": unk,
            "target_stderr": target_stderr,
            "max_samples": max_samples,
            "bounds": bounds,
            **more,
        }
        scorer = self._scorer(options, batch_size=batch_size, quiet=not progress)
        if contexts is None:
            queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
            answers = scorer.score_texts(queries)
        else:
            # A context is read once, under the name of the first text after it.
            first = {context: n for n, context in reversed([*enumerate(contexts)])}
            queries = [
                Query(n, f"text/{first[context]}", text, context)
                for n, (context, text) in enumerate(zip(contexts, texts, strict=True))
            ]
            answers = scorer.score_continuations(queries)
        found: dict[int, Answer] = {}
        with noting_progress(
            found, texts, f"texts were scored, and are lost: {KEEPING}"
        ):
            try:
                for answer in answers:
                    found[answer.index] = answer
            except MissedTextsError as err:
                raise err.leaving(found, len(texts)) from err.__cause__
        return [found[n].estimate for n in range(len(texts))]

    def surprisal(
        self,
        texts: Sequence[str],
        *,
        regions: bool = False,
        batch_size: int | str | None = "auto",
        progress: bool = False,
        **options: Any,
    ) -> DataFrame:
        """Return the surprisal of each word, with its Monte Carlo error, as a table.

        Args:
            texts: N strings, cut into words at their white space.
            regions: Whether ``|`` stands between regions that take the place of words.
            batch_size: As of ``log_likelihood``.
            progress: Show a progress bar.
            **options: Those of ``log_likelihood``: ``estimator``, ``num_samples`` and
                the like, or a model's own.

        Returns:
            A row a word and one an end (docs/surprisal.md), in nats and bits. Errors
            that cannot be told are ``NA``.

        Raises:
            MissedTextsError: If no latent was found of some texts.
            ValueError: If the model gives no probability of a word after those before,
                a setting is impossible or a text cannot be scored.
            TypeError: If ``texts`` is no list of strings.

        Example:
            >>> import lm_latent_eval
            >>> from lm_latent_eval.demo import CHECKPOINT
            >>> model = lm_latent_eval.load(CHECKPOINT)
            >>> table = model.surprisal(["It is known for its plums."], num_samples=50)
            >>> [*table.word]
            ['It', 'is', 'known', 'for', 'its', 'plums.', '</s>']
        """
        scorer = self._scorer(options, batch_size=batch_size, quiet=not progress)
        return surprisal.table(scorer, checked_strings(texts), regions=regions)

    def generate(
        self,
        contexts: Sequence[str],
        *,
        max_tokens: int = MOST_TOKENS,
        until: Sequence[str] = (),
        sampling_temperature: float = 1.0,
        num_samples: int | None = None,
        proposal: str | None = None,
        seed: int = 0,
    ) -> list[str]:
        """Continue texts word by word.

        Args:
            contexts: What to continue; ``""`` begins a text.
            max_tokens: Write at most so many words.
            until: Strings to stop before.
            sampling_temperature: Of the words; 0 takes the most probable one.
            num_samples: Latents that stand for the text so far.
            proposal: What they are drawn from.
            seed: Of the random numbers.

        Returns:
            The continuations.

        Raises:
            ValueError: If a setting is impossible.
            TypeError: If ``contexts`` or ``until`` is no list of strings.
        """
        contexts = checked_strings(contexts, "contexts")
        options = {"num_samples": num_samples, "proposal": proposal, "seed": seed}
        how = GenerationOptions(
            tuple(checked_strings(until, "until")),
            whole("max_tokens", max_tokens, 1),
            at_least_0("sampling_temperature", sampling_temperature),
        )
        scorer = self._scorer(options, quiet=True)
        queries = [(Query(n, f"text/{n}", "", c), how) for n, c in enumerate(contexts)]
        texts = dict(scorer.generate(queries))
        return [texts[n] for n in range(len(contexts))]

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        token: str | bool | None = None,
    ) -> str:
        """Send all that loading needs to the hub, in one commit.

        The card, which says how the model is scored, is the checkpoint's ``README.md``
        or a new one; numbers come into it by ``lm-latent-eval export RESULTS --to
        model-card --output DIR/README.md``.

        Args:
            repo_id: ``name/model``, made if it is not there.
            private: Whether a new repository is.
            revision: Branch to send to; None is ``main``.
            create_pr: Propose instead of changing the branch.
            token: Of the hub; None is the one that is logged in.

        Returns:
            The address of the commit.

        Raises:
            ManifestError: If the directory is not what its manifest says.
            ValueError: If the model scores strings its own way.
        """
        checkpoint = self.checkpoint
        manifest.verify(checkpoint.directory)
        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        there = manifest.files(checkpoint.directory)
        files = [CommitOperationAdd(path.name, path) for path in there]
        found = read_card(checkpoint.directory / CARD, repo_id, TAGS)
        put_section(found, "lm-latent-eval: use", _use(checkpoint, repo_id))
        commit = api.create_commit(
            repo_id,
            [*files, CommitOperationAdd(CARD, str(found).encode())],
            commit_message=f"{checkpoint.name} {checkpoint.digest}, by lm-latent-eval",
            revision=revision,
            create_pr=create_pr,
        )
        return str(commit.commit_url)

    def _scorer(self, options: dict[str, Any], **how: Any) -> TextScorer:
        """Return a scorer by the given options, without our defaults."""
        opening = OpeningOptions.names()
        if other := next((name for name in options if name in opening), None):
            raise ValueError(
                f"{other!r} is no argument of log_likelihood, which takes batch_size; "
                "load takes model, revision, device and dtype, and the others are of "
                "commands (docs/options.md)"
            )
        given = {
            name: value
            for name, value in options.items()
            if value is not None and value != _DEFAULTS.get(name)
        }
        return scorer_of(self.opened, given, **how)


def load(
    path: str | Path,
    *,
    model: str | None = None,
    revision: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = "auto",
) -> LatentModel:
    """Load a checkpoint directory, or a repository of the hub.

    Args:
        path: Where it is.
        model: Its name, with or without ``latent_``, or ``package.module:Class``. None:
            what the directory says.
        revision: Of the repository: a commit, tag or branch. None: the newest.
        device: Where to compute, such as ``cpu``, ``cuda``, ``cuda:1`` or ``mps``,
            which has no float64. None: a GPU if there is one.
        dtype: Floating type to compute in; ``auto`` is that of the checkpoint. One of
            ``auto``, ``float32``, ``float64``. Default: auto.

    Raises:
        ValueError: If there is no checkpoint, or it is incomplete or damaged.
    """
    return LatentModel(
        open_model(
            path,
            model=model,
            revision=revision,
            dtype=parse_dtype(dtype),
            device=parse_device(device),
        )
    )


CARD = "README.md"


TAGS = ("latent-variable-model",)
"""Tags of a new card of a model of ours."""


def read_card(path: Path, name: str, tags: Sequence[str] = ()) -> ModelCard:
    """Return a model card that is there, or begin one.

    Args:
        path: Of the card.
        name: Name of the model in a new card.
        tags: Its tags.
    """
    if path.exists():
        there: ModelCard = ModelCard.load(path)
        return there
    data = ModelCardData(tags=[*tags] or None)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {name}\n")


def put_section(found: ModelCard, mark: str, text: str) -> None:
    """Write a section of a card, in the place of what it was before if it was there.

    Args:
        found: The card.
        mark: The comment that begins the section, and with a slash ends it.
        text: Text of the section.
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
