"""EntityNLM, as in its ACL 2020 code; the older "master" code is another model.

``modeling`` has p(x, z) and the proposals, ``network`` their layers, ``latents`` the
chains, the distribution of one step and the entity slots, ``steps`` what the engine
unfolds, ``training`` all about annotation. Besides: ``given_chains`` (scores of given
chains), ``data`` (CoNLL files).
"""
