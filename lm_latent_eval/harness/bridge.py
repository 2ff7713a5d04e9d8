"""Make ``lm_eval --model latent_...`` work with lm-eval 0.4.13.

Later releases of lm-eval discover backends through entry points; 0.4.13 knows only
its own. This file and ``bridge.pth`` beside it are installed into site-packages, as
``lm_latent_eval_bridge``, where Python runs the one line of the latter at every start::

    Python starts                -> a finder goes onto sys.meta_path, nothing more
    lm_eval.models is imported   -> the finder calls find_spec below
    lm_eval.models has run       -> the entry points of every installed package are
                                    registered, the finder leaves

Every start of Python in the environment pays for that line (twice in a virtual
environment of Python 3.11, whose ``site`` reads such files twice: the second time it
finds its finder there), so it touches no file and makes no class: the finder is a
function that is its own ``find_spec``. ``benchmarks/startup.py`` measures the price.

Nothing that goes wrong here keeps lm-eval, let alone Python, from working, and nothing
of the package itself is needed: where it is broken or gone, whoever asks lm-eval for
one of its backends gets the error of importing it.

Set ``LM_LATENT_EVAL_NO_BRIDGE=1`` to switch the bridge off. Python reads ``.pth``
files in site directories alone: after ``pip install --target``, import
``lm_latent_eval.harness.backends`` yourself.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution, entry_points
from types import ModuleType
from typing import Any

DISTRIBUTION = "lm-latent-eval"
GROUP = "lm_eval.models"  # of entry points, and the module that they wait for
SWITCH = "LM_LATENT_EVAL_NO_BRIDGE"


def find_spec(
    bridge: MetaPathFinder, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Find ``lm_eval.models`` as Python would, with a loader that registers.

    Args:
        bridge: The finder on ``sys.meta_path`` that was asked.
        path: As for ``MetaPathFinder.find_spec``.
        target: As for ``MetaPathFinder.find_spec``.

    Returns:
        The spec, or None where the bridge is switched off or the module is missing.
    """
    if os.environ.get(SWITCH, "") not in ("", "0"):
        return None
    # Finders before the bridge have declined already. Asking them again could go
    # round in circles with a hook that is built like this one.
    for finder in sys.meta_path[sys.meta_path.index(bridge) + 1 :]:
        spec = finder.find_spec(GROUP, path, target)
        if spec is not None:
            if spec.loader is not None:
                spec.loader = BridgeLoader(spec.loader, bridge)
            return spec
    return None


class BridgeLoader(Loader):
    """Loads as the wrapped loader does, then registers; leaves no trace of itself."""

    def __init__(self, wrapped: Loader, bridge: MetaPathFinder) -> None:
        """Wrap the loader that ``bridge`` found."""
        self.wrapped = wrapped
        self.bridge = bridge

    def __getattr__(self, name: str) -> object:
        """Offer what the wrapped loader offers, such as ``get_source``."""
        return getattr(self.wrapped, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the wrapped loader does."""
        return self.wrapped.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module under its own loader, then register our backends."""
        module.__loader__ = self.wrapped
        if module.__spec__ is not None:
            module.__spec__.loader = self.wrapped
        self.wrapped.exec_module(module)
        # Only now: after a failed import, the next attempt needs the bridge again.
        if self.bridge in sys.meta_path:
            sys.meta_path.remove(self.bridge)
        with suppress(Exception):  # a registry that has little of 0.4.13's
            announce()


def announce() -> None:
    """Register, or leave it to lm-eval's error to say why that was not possible."""
    from lm_eval.api import registry

    try:
        register(registry)
    except Exception as err:
        explain_failure(registry, f"{type(err).__name__}: {err}")


def register(registry: Any) -> None:
    """Enter every package's entry points in lm-eval's registry; they resolve late.

    Names that are taken stay as they are. Where the registry discovers entry points
    itself (it then has ``load_plugins``), there is nothing to do.

    The entries are strings, ``"module:Class"``: 0.4.13 replaces only such a
    placeholder by the class once ``@register_model`` runs in that module.
    """
    if hasattr(registry, "load_plugins"):
        return
    for entry in entry_points(group=GROUP):
        if entry.name not in registry.model_registry:
            registry.model_registry.register(entry.name, target=entry.value)
    distribution(DISTRIBUTION)  # whose backends are missing where its metadata are


def explain_failure(registry: Any, reason: str) -> None:
    """Let lm-eval's error for a model that it does not know say why."""
    get_model = registry.get_model

    @functools.wraps(get_model)
    def explained(model_name: str) -> Any:
        try:
            return get_model(model_name)
        except ValueError as err:
            if model_name in registry.model_registry:
                raise
            raise ValueError(
                f"{err} (those of installed packages are missing: {reason}. Reinstall "
                f"{DISTRIBUTION}, or set {SWITCH}=1 to do without them)"
            ) from err

    registry.get_model = explained
