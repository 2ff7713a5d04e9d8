"""Documents of the demonstration world, generated anew: no file is read."""

from datasets import Dataset

from lm_latent_eval.demo.document import raw_text
from lm_latent_eval.demo.facts import facts
from lm_latent_eval.demo.world import generate


def texts(**_):
    """Texts of the test split."""
    documents = generate().documents("test")
    return {"test": Dataset.from_list([{"text": raw_text(d)} for d in documents])}


def questions(**_):
    """Multiple-choice questions about withheld facts."""
    return {"test": Dataset.from_list(facts(generate()))}
