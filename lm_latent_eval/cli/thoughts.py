"""``lm-latent-eval thoughts``: diagnostics of thoughts, and rescoring from them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.cli.arguments import Commands, add_format, read_format

if TYPE_CHECKING:
    from lm_latent_eval.report.tabular import Table
    from lm_latent_eval.wrappers.cot.thoughts import ThoughtFile


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    thoughts = commands.add_parser(
        "thoughts",
        help=said,
        example="lm-latent-eval thoughts results/cot",
    )
    thoughts.add_argument(
        "results", type=Path, help="the folder of --output_path, or a thoughts_ file"
    )
    thoughts.add_argument(
        "--answers",
        type=Path,
        help='score these instead: JSON lines, {"document": 0, "answers": [" yes"]}',
    )
    thoughts.add_argument("--model", help="directory of the model that drew them")
    thoughts.add_argument("--device", help="cpu or cuda")
    thoughts.add_argument("--dtype", help="float32 or float64")
    add_format(thoughts)
    thoughts.set_defaults(run=_thoughts)


def _thoughts(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.tabular import rendered, together
    from lm_latent_eval.report.thoughts import curve_table, text, thought_files

    kind = read_format(args)
    if (args.answers is None) != (args.model is None):
        raise ValueError("--answers and --model: give both, or neither")
    files = thought_files(args.results)
    if args.answers is not None:
        print(rendered(_answered(args, files), kind))
    elif kind == "text":
        print("\n\n".join(map(text, files)))
    else:
        tables = {file.settings["task"]: curve_table(file) for file in files}
        print(together(tables, kind))


def _answered(args: argparse.Namespace, files: list[ThoughtFile]) -> Table:
    """Score the answers of a file; nothing is drawn."""
    from lm_latent_eval.report.thoughts import estimates, most_of
    from lm_latent_eval.scoring.options import parse_device, parse_dtype
    from lm_latent_eval.wrappers.cot.model import ThinkingLM, read_answers, rescore

    if len(files) != 1:
        tasks = ", ".join(file.settings["task"] for file in files)
        raise ValueError(f"{args.results} has thoughts of {tasks}: name one file")
    answers = read_answers(args.answers)
    model = ThinkingLM.open_directory(
        Path(args.model),
        dtype=parse_dtype(args.dtype),
        device=parse_device(args.device),
    )
    return estimates(rescore(model, files[0], answers), most_of(files[0]))
