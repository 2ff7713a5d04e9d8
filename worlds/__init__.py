"""Draws small fictional worlds to try a knowledge-graph language model on.

Some three hundred people, places, companies and works, the facts that connect them,
and short texts that walk from one to the next with every mention marked. All of it is
made up here. The package ships what is drawn of two worlds (``lm_latent_eval.demo``):

    python -m worlds

draws that again, the same to the last letter.

Example:
    >>> from worlds.world import generate
    >>> world = generate(seed=0)
    >>> len(world.documents("train"))
    3000
"""
