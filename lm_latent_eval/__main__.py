"""``python -m lm_latent_eval``: the command line where its script is not found."""

from __future__ import annotations

import sys

from lm_latent_eval.cli import main

sys.exit(main())
