"""Likelihoods of latent-variable language models, with their Monte Carlo error.

Importing this package is cheap: it loads neither torch nor anything else of weight.
The public names below resolve on first use.

Example:
    >>> import lm_latent_eval
    >>> lm_latent_eval.Estimat
    Traceback (most recent call last):
        ...
    AttributeError: module 'lm_latent_eval' has no attribute 'Estimat'; did you mean
    Estimate?
"""

from lm_latent_eval.version import __version__

TYPE_CHECKING = False  # typing's own constant would cost an import of typing
if TYPE_CHECKING:
    from lm_latent_eval.estimators import Estimate
    from lm_latent_eval.folders import metric_path, task_path
    from lm_latent_eval.scoring.model import LatentModel, load

__all__ = [
    "Estimate",
    "LatentModel",
    "__version__",
    "load",
    "metric_path",
    "task_path",
]

_LAZY = {
    "Estimate": "lm_latent_eval.estimators",
    "LatentModel": "lm_latent_eval.scoring.model",
    "load": "lm_latent_eval.scoring.model",
    "metric_path": "lm_latent_eval.folders",
    "task_path": "lm_latent_eval.folders",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name in _LAZY:
        from importlib import import_module

        value: object = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    message = f"module {__name__!r} has no attribute {name!r}"
    if not name.startswith("_"):
        from difflib import get_close_matches

        near = get_close_matches(name, __all__)
        if near:
            message += f"; did you mean {' or '.join(near)}?"
        else:
            message += f"; it offers {', '.join(sorted(_LAZY))}"
    raise AttributeError(message, name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
