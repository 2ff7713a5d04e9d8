"""What the distributional-distortion task takes from the package."""

from lm_latent_eval.harness.distortion import DistributionalDistortionTask

__all__ = ["DistributionalDistortionTask"]
