"""Registration of every model with transformers' Auto classes.

    import lm_latent_eval.models.auto
    from transformers import AutoModel

    AutoModel.from_pretrained(DIR)

A model registers when its module is imported (``Pretrained``). Import this module if
the model of a directory is unknown.
"""

from lm_latent_eval.models import REGISTRY, WRAPPERS, model_class

for _name in REGISTRY.names():
    if _name not in WRAPPERS:
        model_class(_name)
