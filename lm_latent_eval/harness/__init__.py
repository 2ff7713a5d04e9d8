"""Integration with lm-evaluation-harness; only this package imports lm_eval."""
