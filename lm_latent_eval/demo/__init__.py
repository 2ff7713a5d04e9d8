"""A small fictional world to try a knowledge-graph language model on.

Some three hundred people, places, companies and works, the facts that connect them,
and short texts that walk from one to the next with every mention marked. All of it is
made up here, so nothing has to be downloaded and no model has seen it before.

Example:
    >>> from lm_latent_eval.demo.world import generate
    >>> world = generate(seed=0)
    >>> len(world.documents("train"))
    3000

``python -m lm_latent_eval.demo --out DIR`` writes the texts as JSON lines, and
``--checkpoint`` prints where the model is that was trained on them.
"""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""A small KGLM trained on the world's training texts."""
