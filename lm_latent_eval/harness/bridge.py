"""Make ``lm_eval --model latent_...`` work with lm-eval 0.4.13.

Later releases of lm-eval discover backends through entry points; 0.4.13 knows only
its own. ``bridge.pth``, beside this module, is installed into site-packages, where
Python runs its one line at every start::

    Python starts                -> a finder goes onto sys.meta_path, nothing more
    lm_eval.models is imported   -> the finder calls find_spec below
    lm_eval.models has run       -> our entry points are registered, the finder leaves

Every start of Python in the environment pays for that line, so it touches no file,
makes no class (the finder is a function that is its own ``find_spec``), and this
package is not imported before lm-eval is. Nothing that goes wrong here keeps lm-eval,
let alone Python, from working. ``benchmarks/startup.py`` measures the price.

Set ``LM_LATENT_EVAL_NO_BRIDGE=1`` to switch the bridge off. Python reads ``.pth``
files in site directories alone: after ``pip install --target``, import
``lm_latent_eval.harness.backends`` yourself.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution
from types import ModuleType

DISTRIBUTION = "lm-latent-eval"
GROUP = "lm_eval.models"  # of entry points, and the module that they wait for
SWITCH = "LM_LATENT_EVAL_NO_BRIDGE"

logger = logging.getLogger(__name__)


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
        try:
            register()
        except Exception as err:
            logger.warning(
                "lm_eval --model does not know the backends of %s (%s: %s). "
                "Reinstall %s, or set %s=1 to do without them.",
                DISTRIBUTION,
                type(err).__name__,
                err,
                DISTRIBUTION,
                SWITCH,
            )


def register() -> None:
    """Enter our entry points in lm-eval's registry, as names that resolve late.

    Names that are taken stay as they are. Where the registry discovers entry points
    itself (it then has ``load_plugins``), there is nothing to do.

    The entries are strings, ``"module:Class"``: 0.4.13 replaces only such a
    placeholder by the class once ``@register_model`` runs in that module.
    """
    from lm_eval.api import registry

    if hasattr(registry, "load_plugins"):
        return
    for entry in distribution(DISTRIBUTION).entry_points.select(group=GROUP):
        if entry.name not in registry.model_registry:
            registry.model_registry.register(entry.name, target=entry.value)
