"""KGLM: a language model that walks through a knowledge graph.

``modeling`` has p(x, z) and the proposals, ``network`` their layers, ``latents`` the
walks and the distribution of one step, ``steps`` what the engine unfolds, ``training``
all about annotation. Besides: ``graph`` and ``graph_file``, ``scores`` of entities and
edges, ``search`` and ``drawing`` (walks), ``data`` (formats of annotated texts).
"""
