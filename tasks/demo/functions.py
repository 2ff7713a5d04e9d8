"""Documents of the demonstration world, which lie in the package."""

from datasets import Dataset

from lm_latent_eval import demo


def texts(**_):
    """Texts of the test split."""
    return {"test": Dataset.from_list([{"text": text} for text in demo.texts("test")])}


def questions(**_):
    """Multiple-choice questions about withheld facts."""
    return {"test": Dataset.from_list(demo.questions())}
