"""Registration of every model with transformers' Auto classes.

    import lm_latent_eval.models.auto
    from transformers import AutoModel

    AutoModel.from_pretrained(DIR)

A model makes itself known when its module is imported (``Pretrained``); importing this
module is only worth it where the model of a directory is not known beforehand.
"""

from lm_latent_eval.models import REGISTRY, WRAPPERS, model_class

for _name in REGISTRY.names():
    if _name not in WRAPPERS:
        model_class(_name)
