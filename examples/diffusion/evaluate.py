r"""Run lm-eval's tasks on a masked diffusion model that another process computes.

python evaluate.py --tasks piqa,wikitext --tokenizer GSAI-ML/LLaDA-8B-Base \
        --mask-token 126336 --max-length 4096 --model-args num_samples=128 \
        -- old/bin/python serve.py GSAI-ML/LLaDA-8B-Base --trust-remote-code
"""

import argparse
import subprocess
from collections.abc import Sequence

import lm_eval
import numpy as np
import torch
from lm_eval.utils import make_table, simple_parse_args_string
from transformers import AutoTokenizer

from lm_latent_eval.harness.backend import Backend
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion


class Remote:
    """A function from tokens to scores, computed by ``serve.py``."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Ask for the scores of tokens, (B, T) -> (B, T, V)."""
        to, back = self.process.stdin, self.process.stdout
        to.write(np.array(tokens.shape, np.int64).tobytes())
        to.write(tokens.cpu().numpy().tobytes())
        to.flush()
        shape = back.read(24)
        if len(shape) < 24:
            raise RuntimeError("the process that serves the model has ended")
        size = np.frombuffer(shape, np.int64)
        scores = np.frombuffer(back.read(4 * int(size.prod())), np.float32)
        return torch.from_numpy(scores.reshape(size).copy())

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def main() -> None:
    """Evaluate, and print lm-eval's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--mask-token")
    parser.add_argument("--max-length", type=int, required=True)
    parser.add_argument("--model-args", default="")
    parser.add_argument("command", nargs="+", help="what serves the model")
    args = parser.parse_args()
    remote = Remote(args.command)
    model = MaskedDiffusion.of_function(
        remote,
        AutoTokenizer.from_pretrained(args.tokenizer, trust_remote_code=False),
        version=" ".join(args.command),
        max_length=args.max_length,
    )
    options = simple_parse_args_string(args.model_args)
    if args.mask_token:
        options["mask_token"] = args.mask_token
    scorer = model.scorer(options)
    lm = Backend(scorer, Processes.start(), torch.device("cpu"))
    results = lm_eval.simple_evaluate(model=lm, tasks=args.tasks.split(","))
    print(make_table(results))
    remote.close()


if __name__ == "__main__":
    main()
