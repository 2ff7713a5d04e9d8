"""Optional dependencies, imported where they are used."""

from importlib import import_module
from types import ModuleType


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
