"""Serve a masked diffusion model's scores to another process, by pipes.

Runs under the Python whose transformers the model's own code needs:

    python serve.py GSAI-ML/LLaDA-8B-Base --auto-class AutoModel --trust-remote-code

Asked is a shape (two int64) and tokens (int64); answered a shape (three int64) and
scores (float32), all in the machine's byte order. Where scores are those of the next
place (Dream), whoever asks has to know it: ``--model-args logit_shift=1``.
"""

import argparse
import sys

import numpy as np
import torch
import transformers


def main() -> None:
    """Load the model, and answer until nothing more is asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pretrained")
    parser.add_argument("--auto-class", default="AutoModel")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code of the model's own"
    )
    args = parser.parse_args()
    pipe, sys.stdout = sys.stdout.buffer, sys.stderr  # what the model prints goes there
    network = getattr(transformers, args.auto_class).from_pretrained(
        args.pretrained,
        trust_remote_code=args.trust_remote_code,
        torch_dtype=getattr(torch, args.dtype),
    )
    network = network.to(args.device).eval()
    while len(shape := sys.stdin.buffer.read(16)) == 16:
        rows, columns = np.frombuffer(shape, np.int64)
        asked = sys.stdin.buffer.read(8 * int(rows * columns))
        tokens = torch.tensor(np.frombuffer(asked, np.int64).reshape(rows, columns))
        with torch.inference_mode():
            scores = network(input_ids=tokens.to(args.device)).logits.float()
        pipe.write(np.array(scores.shape, np.int64).tobytes())
        pipe.write(scores.cpu().numpy().tobytes())
        pipe.flush()


if __name__ == "__main__":
    main()
