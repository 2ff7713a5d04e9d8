"""Start-up hook that registers our models and tasks with lm-eval 0.4.13.

Later releases of lm-eval discover backends through entry points; 0.4.13 knows only
its own, and tasks none of them discovers. This file and ``bridge.pth`` beside it are
installed into site-packages, as ``lm_latent_eval_bridge``. The latter is one line, by
which Python imports this module at every start::

    Python starts                -> this module goes onto sys.meta_path, as a finder
    lm_eval.models is imported   -> find_spec below gives it a loader that registers
    lm_eval.models has run       -> the entry points of every installed package are
                                    registered
    lm_eval.tasks has run        -> folders of tasks of every installed package are
                                    indexed beside lm-eval's own
    both have run                -> the finder leaves

Every start of Python in the environment pays for that import, so the module imports
nothing but ``sys``. The line is as short as it can be because Python reads such files
as text before anything can be caught: one whose bytes are damaged stops every start.

Nothing that goes wrong here keeps lm-eval, let alone Python, from working, and nothing
of the package itself is needed: where it is broken or gone, whoever asks lm-eval for
one of its backends gets the error of importing it. Interrupts are not held up; after
one, the next import registers.

Set ``LM_LATENT_EVAL_NO_BRIDGE=1`` to switch the bridge off. Python reads ``.pth``
files in site directories alone: after ``pip install --target``, import
``lm_latent_eval.harness.backends`` yourself, and name the folder of tasks by
``--include_path``.
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
MODELS, TASKS = "lm_eval.models", "lm_eval.tasks"
"""Groups of entry points, and the modules that they wait for."""
SWITCH = "LM_LATENT_EVAL_NO_BRIDGE"
WRONG = (Exception, SystemExit)
"""Errors that are reported here; interrupts pass."""
_waiting = {MODELS, TASKS}
"""Modules that have not been imported yet."""


def find_spec(
    name: str,
    path: "Sequence[str] | None" = None,
    target: "ModuleType | None" = None,
) -> "ModuleSpec | None":
    """Find a module of lm-eval as Python would, with a loader that registers.

    Args:
        name: Of the module that is imported.
        path: As for ``MetaPathFinder.find_spec``.
        target: As for ``MetaPathFinder.find_spec``.

    Returns:
        The spec, or None for every other module, and where the bridge is switched off
        or nobody finds the module.
    """
    if name not in _waiting:
        return None
    try:
        return _wrapped(name, path, target)
    except WRONG:
        return None


def _wrapped(
    name: str, path: "Sequence[str] | None", target: "ModuleType | None"
) -> "ModuleSpec | None":
    import os

    if os.environ.get(SWITCH, "") not in ("", "0"):
        return None
    # Finders before the bridge have declined already. Asking them again could go
    # round in circles with a hook that is built like this one.
    for finder in sys.meta_path[sys.meta_path.index(_bridge()) + 1 :]:
        spec = finder.find_spec(name, path, target)
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
                announce() if module.__name__ == MODELS else offer_tasks(module)
            # Only now: after a failed import, the next attempt needs the bridge again.
            _waiting.discard(module.__name__)
            if not _waiting and _bridge() in sys.meta_path:
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
    for entry in entry_points(group=MODELS):
        if entry.name not in registry.model_registry:
            registry.model_registry.register(entry.name, target=entry.value)
    distribution(DISTRIBUTION)  # whose backends are missing where its metadata are


def offer_tasks(tasks: "Any") -> None:
    """Let lm-eval's index of tasks have the folders of installed packages.

    They come before the folders that a user names, which may replace tasks of theirs,
    and not where lm-eval's own tasks are not wanted, either.
    """
    import functools
    import inspect

    begin = tasks.TaskManager.__init__
    signature = inspect.signature(begin)
    if "include_path" not in signature.parameters:
        return

    @functools.wraps(begin)
    def begin_with_ours(*args: "Any", **kwargs: "Any") -> None:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments.get("include_path") or []
        named = [*given] if isinstance(given, (list, tuple)) else [given]
        if bound.arguments.get("include_defaults", True):
            bound.arguments["include_path"] = [*_folders(named), *named] or None
        begin(*bound.args, **bound.kwargs)

    tasks.TaskManager.__init__ = begin_with_ours


def _folders(named: "Sequence[Any]") -> "list[str]":
    """Return the folders of tasks of installed packages, but for those named."""
    import os
    from contextlib import suppress
    from importlib.metadata import entry_points

    given = {os.path.realpath(folder) for folder in named}
    listed = []
    for entry in entry_points(group=TASKS):
        with suppress(*WRONG):  # a package that is broken has no tasks
            folder = os.path.realpath(entry.load()())
            if folder not in given:
                listed.append(folder)
    return listed


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
