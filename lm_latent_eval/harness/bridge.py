"""Start-up hook that registers our models with lm-eval 0.4.13.

Later releases of lm-eval discover backends through entry points; 0.4.13 knows only
its own. This file and ``bridge.pth`` beside it are installed into site-packages, as
``lm_latent_eval_bridge``. The latter is one line, by which Python imports this module
at every start::

    Python starts                -> this module goes onto sys.meta_path, as a finder
    lm_eval.models is imported   -> find_spec below gives it a loader that registers
    lm_eval.models has run       -> the entry points of every installed package are
                                    registered, the finder leaves

Every start of Python in the environment pays for that import, so the module imports
nothing but ``sys``. The line is as short as it can be because Python reads such files
as text before anything can be caught: one whose bytes are damaged stops every start.

Nothing that goes wrong here keeps lm-eval, let alone Python, from working, and nothing
of the package itself is needed: where it is broken or gone, whoever asks lm-eval for
one of its backends gets the error of importing it. Interrupts are not held up; after
one, the next import of ``lm_eval.models`` registers.

Set ``LM_LATENT_EVAL_NO_BRIDGE=1`` to switch the bridge off. Python reads ``.pth``
files in site directories alone: after ``pip install --target``, import
``lm_latent_eval.harness.backends`` yourself.
"""

import sys

TYPE_CHECKING = False  # typing's own constant would cost an import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

NAME = "lm_latent_eval_bridge"
DISTRIBUTION = "lm-latent-eval"
GROUP = "lm_eval.models"  # of entry points, and the module that they wait for
SWITCH = "LM_LATENT_EVAL_NO_BRIDGE"
WRONG = (Exception, SystemExit)
"""Errors that are reported here; interrupts pass."""


def find_spec(
    name: str,
    path: "Sequence[str] | None" = None,
    target: "ModuleType | None" = None,
) -> "ModuleSpec | None":
    """Find ``lm_eval.models`` as Python would, with a loader that registers.

    Args:
        name: Of the module that is imported.
        path: As for ``MetaPathFinder.find_spec``.
        target: As for ``MetaPathFinder.find_spec``.

    Returns:
        The spec, or None for every other module, and where the bridge is switched off
        or nobody finds the module.
    """
    if name != GROUP:
        return None
    try:
        return _wrapped(path, target)
    except WRONG:
        return None


def _wrapped(
    path: "Sequence[str] | None", target: "ModuleType | None"
) -> "ModuleSpec | None":
    import os

    if os.environ.get(SWITCH, "") not in ("", "0"):
        return None
    # Finders before the bridge have declined already. Asking them again could go
    # round in circles with a hook that is built like this one.
    for finder in sys.meta_path[sys.meta_path.index(_bridge()) + 1 :]:
        spec = finder.find_spec(GROUP, path, target)
        if spec is not None:
            if spec.loader is not None:
                spec.loader = _loader(spec.loader)
            return spec
    return None


def _bridge() -> "Any":
    """Return this module, which is the finder."""
    return sys.modules[NAME]


def _loader(wrapped: "Loader") -> "Loader":
    """Return a loader that loads as another does, then registers, and leaves no trace.

    It is defined where it is needed: its base costs an import.
    """
    from contextlib import suppress
    from importlib.abc import Loader

    class BridgeLoader(Loader):
        def __getattr__(self, name: str) -> object:
            """Offer what the wrapped loader offers, such as ``get_source``."""
            return getattr(wrapped, name)

        def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
            return wrapped.create_module(spec)

        def exec_module(self, module: "ModuleType") -> None:
            """Run the module under its own loader, then register our backends."""
            module.__loader__ = wrapped
            if module.__spec__ is not None:
                module.__spec__.loader = wrapped
            wrapped.exec_module(module)
            with suppress(*WRONG):  # a registry that has little of 0.4.13's
                announce()
            # Only now: after a failed import, the next attempt needs the bridge again.
            if _bridge() in sys.meta_path:
                sys.meta_path.remove(_bridge())

    return BridgeLoader()


def announce() -> None:
    """Register models; if that fails, lm-eval's own error gives the reason."""
    from lm_eval.api import registry

    try:
        register(registry)
    except WRONG as err:
        explain_failure(registry, f"{type(err).__name__}: {err}")


def register(registry: "Any") -> None:
    """Enter every package's entry points in lm-eval's registry; they resolve late.

    Names that are taken stay as they are. Where the registry discovers entry points
    itself (it then has ``load_plugins``), there is nothing to do.

    The entries are strings, ``"module:Class"``: 0.4.13 replaces only such a
    placeholder by the class once ``@register_model`` runs in that module.
    """
    from importlib.metadata import distribution, entry_points

    if hasattr(registry, "load_plugins"):
        return
    for entry in entry_points(group=GROUP):
        if entry.name not in registry.model_registry:
            registry.model_registry.register(entry.name, target=entry.value)
    distribution(DISTRIBUTION)  # whose backends are missing where its metadata are


def explain_failure(registry: "Any", reason: str) -> None:
    """Add why registration failed to lm-eval's error of an unknown model."""
    import functools

    get_model = registry.get_model

    @functools.wraps(get_model)
    def explained(model_name: str) -> "Any":
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


if __name__ == NAME:  # installed, beside the package
    sys.meta_path.insert(0, _bridge())
