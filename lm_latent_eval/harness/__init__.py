"""The lm-evaluation-harness side: the only package of ours that imports lm_eval."""
