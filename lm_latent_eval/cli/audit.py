"""``lm-latent-eval audit``: tests whether an lm-eval model's scores are likelihoods."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from lm_latent_eval.audit.verdict import PARTS, Kind
from lm_latent_eval.cli.arguments import Commands
from lm_latent_eval.options import one_of, positive, whole
from lm_latent_eval.text.files import numbered_lines

KINDS = tuple(kind.value for kind in Kind)
LIMIT = 8
"""Documents of a task that are asked about."""


def add_audit(commands: Commands, summary: str) -> None:
    audit = commands.add_parser(
        "audit",
        help=summary,
        description="Takes any backend of lm-eval, and tests totals, causality, "
        "the chain rule, sameness, units, samples and printed errors. The exit status "
        "is 1 if it fails.",
        example="lm-latent-eval audit --model hf --model_args pretrained=DIR",
    )
    audit.add_argument("--model", required=True, help="as lm_eval --model has it")
    audit.add_argument(
        "--model_args",
        "--model-args",
        default="",
        metavar="ARGS",
        help="as lm_eval has them",
    )
    audit.add_argument("--batch_size", "--batch-size", help="as lm_eval has it")
    audit.add_argument("--device", help="as lm_eval has it")
    audit.add_argument(
        "--kind",
        help=f"what the scorer claims to be a distribution over, one of "
        f"{', '.join(KINDS)}: which failures are named and no alarm (default: by the "
        "name of the model, tokens for models that are not ours)",
    )
    audit.add_argument(
        "--tasks", help="ask about their texts, and count what their results divide by"
    )
    audit.add_argument(
        "--include_path", "--include-path", help="task files, as lm_eval has it"
    )
    audit.add_argument(
        "--data", type=Path, help="texts to ask about (default: some in English)"
    )
    audit.add_argument(
        "--options",
        type=Path,
        help="a file of continuations, one a line, of which one at most can follow; in "
        "double quotes as in JSON where white space matters",
    )
    audit.add_argument(
        "--complete", action="store_true", help="nothing else can follow"
    )
    audit.add_argument(
        "--requests",
        default="2000",
        metavar="N",
        help="about how many to make; more find smaller faults (default: 2000)",
    )
    audit.add_argument(
        "--tolerance",
        metavar="X",
        help="by how many nats rounding may move a score (default: 0.001, and in half "
        "precision a share of log p: docs/audit.md)",
    )
    audit.add_argument("--seed", default="0", metavar="N", help="of what is asked")
    audit.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help=f"one of {', '.join(PARTS)}; may be repeated",
    )
    audit.add_argument("--json", action="store_true", help="print JSON")
    audit.set_defaults(run=_audit)


def _audit(args: argparse.Namespace) -> int:
    from lm_latent_eval.audit.run import audit, page
    from lm_latent_eval.audit.session import TEXTS, Plan, Requester, Session
    from lm_latent_eval.harness import audit as harness
    from lm_latent_eval.ledger.settings import plain

    for part in args.only:
        one_of("--only", part, PARTS)
    if args.complete and args.options is None:
        raise ValueError("--complete says something about --options: give both")
    kind = (
        harness.kind_of(args.model)
        if args.kind is None
        else Kind(one_of("--kind", args.kind, KINDS))
    )
    seed = whole("--seed", args.seed, 0, 2**32 - 1)  # of NumPy
    if (tolerance := args.tolerance) is not None:
        tolerance = positive("--tolerance", tolerance)
    plan = Plan.within(whole("--requests", args.requests, 1))
    options = () if args.options is None else _options(args.options)
    texts = TEXTS if args.data is None else _texts(args.data)
    if args.tasks is not None:
        names = args.tasks.split(",")
        manager = harness.tasks_of(args.include_path, names)
    harness.seed_everything(seed)
    model = harness.Model.open(
        args.model, args.model_args, batch_size=args.batch_size, device=args.device
    )
    session = Session(
        Requester(model),
        kind,
        plan,
        texts,
        options,
        args.complete,
        tolerance,
        model.precision,
        seed,
        begin=lambda: harness.seed_everything(seed),
    )
    if args.tasks is not None:
        run = harness.run_tasks(model, names, manager, LIMIT)
        session.ask.requests += run.requests
        session.counted, session.answered = run.findings, run.answered
        session.texts = texts if args.data is not None else run.texts or texts
    heard = sys.stderr
    try:
        with harness.quiet():
            findings = audit(
                session,
                model=f"{args.model} {args.model_args}".rstrip(),
                command=_command(args),
                only=args.only,
                say=lambda line: print(line, file=heard, flush=True),
            )
    except KeyboardInterrupt as stop:
        stop.add_note("nothing is kept: an audit begins anew")
        raise
    if args.json:
        print(json.dumps(plain(findings.as_dict()), indent=2, ensure_ascii=False))
    else:
        print(page(findings))
    return int(findings.failed)


def _options(path: Path) -> list[str]:
    """Read a list of continuations.

    Raises:
        ValueError: If a line in quotes is no string of JSON, or there are fewer than 2.
    """
    options = []
    for number, line in numbered_lines(path):
        if line.startswith('"'):
            try:
                line = str(json.loads(line))
            except ValueError as err:
                raise ValueError(
                    f"{path}, line {number}: {line[:30]} begins with a quote and is no "
                    "string of JSON"
                ) from err
        options.append(line)
    if len({*options}) < 2:
        raise ValueError(f"{path}: expected two continuations or more, one a line")
    return options


def _texts(path: Path) -> list[str]:
    from lm_latent_eval.text.corpora import read_texts

    texts = [text for text in read_texts(path) if text.strip()]
    if not texts:
        raise ValueError(f"{path} has no text but white space")
    return texts


def _command(args: argparse.Namespace) -> list[str]:
    """Return the given command without its choice of parts."""
    command = ["lm-latent-eval", "audit", "--model", args.model]
    for name in getattr(args, "given", {}):
        if name not in ("model", "complete", "only", "json"):
            command += [f"--{name}", str(getattr(args, name))]
    return command + ["--complete"] * args.complete
