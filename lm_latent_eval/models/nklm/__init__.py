"""NKLM: a language model that copies words out of the facts of a topic.

``modeling`` has p(x, z), the steps that the engine unfolds and the proposals,
``network`` their layers, ``latents`` the sources of words, ``training`` all about
annotation. Topics, words and facts are those of ``lrlm``.
"""
