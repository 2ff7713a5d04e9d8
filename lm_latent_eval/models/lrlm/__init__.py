"""LRLM: a language model that names the relations of what a text is about.

``modeling`` has p(x, z) and the proposals, ``network`` their layers, ``latents`` the
segmentations and their scores, ``steps`` what the engine unfolds, ``training`` all
about annotation, whose format is that of ``kglm.data``. Besides: ``topics`` and their
facts, ``lattice`` (sums over segmentations).
"""
