"""Registry of models, proposals and estimators, ours and other packages', and extras.

A name is one of this package's own; or one that an installed package declares as an
entry point; or, wherever a name is taken, ``package.module:Name`` itself. Nothing is
imported before it is asked for, nor are optional dependencies.

    [project.entry-points."lm_latent_eval.models"]    # in the other's pyproject.toml
    hmm = "lm_latent_eval_hmm:HMM"                    # model_type = "lm_package:Class"
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from lm_latent_eval.files import one_line


@dataclass(frozen=True)
class Registry:
    """Classes and functions of one kind by name."""

    group: str
    """Group of entry points."""
    what: str
    """Kind of the named things, for error messages."""
    ours: Mapping[str, Any]
    """Name -> object, or its address ``module:Name``."""

    def __contains__(self, name: str) -> bool:
        """Whether a name is known; ``package.module:Name`` always is."""
        return ":" in name or name in self.ours or bool(self._addresses(name))

    def __getitem__(self, name: str) -> Any:
        """Import what a name stands for.

        Raises:
            ValueError: If there is none, the nearest names are listed; or several
                packages offer it; or it cannot be imported.
        """
        if name in self.ours:
            own = self.ours[name]
            return self._imported(name, own) if isinstance(own, str) else own
        addresses = {name} if ":" in name else self._addresses(name)
        if not addresses:
            names = self.names()
            near = difflib.get_close_matches(name, names) or names
            raise ValueError(f"no {self.what} {name!r}; there is {', '.join(near)}")
        if len(addresses) > 1:
            raise ValueError(
                f"several packages offer a {self.what} {name!r}: name one of "
                f"{', '.join(sorted(addresses))}"
            )
        return self._imported(name, addresses.pop())

    def names(self) -> list[str]:
        """List every name, in alphabetical order."""
        others = (entry.name for entry in entry_points(group=self.group))
        return sorted({*self.ours, *others})

    def _addresses(self, name: str) -> set[str]:
        return {entry.value for entry in entry_points(group=self.group, name=name)}

    def _imported(self, name: str, address: str) -> Any:
        module, _, path = address.partition(":")
        try:
            return reduce(getattr, path.split("."), import_module(module))
        except (ImportError, AttributeError, ValueError) as err:
            raise ValueError(
                f"the {self.what} {name!r} cannot be imported from {address} "
                f"({one_line(err)}): is its package installed, and is this "
                "package.module:Name?"
            ) from err
        except (Exception, SystemExit) as err:  # of code that is not ours
            raise ValueError(
                f"the {self.what} {name!r} cannot be imported from {address}, which "
                f"ends in {type(err).__name__} ({one_line(err)}): repair or remove its "
                "package"
            ) from err


ESTIMATORS = Registry(
    "lm_latent_eval.estimators",
    "estimator",
    {
        "is": "lm_latent_eval.inference.importance:ImportanceSampling",
        "beam": "lm_latent_eval.inference.beam:BeamMarginalization",
        "dpf": "lm_latent_eval.inference.discrete:DiscreteFilter",
        "smc": "lm_latent_eval.inference.smc:ParticleFilter",
        "ais": "lm_latent_eval.inference.annealing:AnnealedImportanceSampling",
        "exact": "lm_latent_eval.inference.beam:Exact",
    },
)
"""Name -> estimator; each is built with its number of samples (or width)."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra provides it.

    Raises:
        ModuleNotFoundError: If it is not installed; names the extra that brings it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as err:
        if err.name != module.partition(".")[0]:
            raise  # installed but broken: do not disguise it
        raise ModuleNotFoundError(
            f"{module} is missing: pip install 'lm-latent-eval[{extra}]'", name=err.name
        ) from err
