r"""The experiments of Logan et al. (2020): how an estimate depends on how it is made.

    python study.py run --pretrained DIR --data texts.jsonl --output study
    python study.py report study/rnng study/kglm --output report

``run`` estimates a corpus by every proposal, temperature, number of samples, level and
beam. Repeated after an interruption it goes on with the next setting. ``report`` needs
no model: it writes tables 1 and 2, the claims and figures 2 to 4 of some studies.

The K samples of a text are R = K / k disjoint replicates of k samples. With
:math:`\ell_n^{(r)} = \log \frac{1}{k} \sum_{j \in r} w_{nj}`,

.. math::
    L^{(r)} = \sum_n \ell_n^{(r)}, \qquad L^* = \sum_n \ell_n^{(r_n)}

:math:`L^{(1)}` over k is the curve of figures 2 and 3. Texts draw independently, so any
choice :math:`r_n` of replicates is another corpus estimate (figure 4). Such estimates
vary less than fresh ones, by 1 - 1/R, and their mean has 1/R of that variance; so a
fresh estimate is distributed, over the draws, as

.. math::
    \bar L + \sqrt{\frac{R + 1}{R - 1}} \, (L^* - \bar L)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter
from scipy.stats import gaussian_kde
from torch import Tensor
from tqdm import tqdm

import lm_latent_eval
from lm_latent_eval.estimators import log_evidence, log_grid, perplexity

TEMPERATURES = [0.5, 0.9, 1.0, 1.1, 2.0, 5.0]
"""Of section 4 of the paper."""
BEAM_WIDTHS = [1, 10, 100]
"""Of its table 2."""
RECOMBINED = 500
"""Corpus estimates put together from replicates of the texts."""
FEWEST_REPLICATES, FEWEST_TEXTS = 5, 10
"""Below either, recombined estimates are too much alike to show a distribution."""
GIVEN = ("temperatures", "num_samples", "replicate", "beam_widths", "seed", "unk")
SETTING = ("estimator", "proposal", "temperature", "num_samples")
Row = dict[str, Any]


# -- estimates -----------------------------------------------------------------------


def read_texts(path: Path) -> list[str]:
    """Read a text a line; of JSON lines their ``text``, or their ``tokens``."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    if not lines:
        raise SystemExit(f"{path} has no text")
    if not lines[0].startswith("{"):
        return lines
    records = map(json.loads, lines)
    return [each.get("text") or " ".join(each["tokens"]) for each in records]


def settings_of(plan: Row) -> Iterator[tuple[str, str, float, int]]:
    """Yield estimator, proposal, temperature and number of samples, one by one."""
    most, sizes = plan["num_samples"], {plan["replicate"], plan["num_samples"]}
    for proposal in plan["tempered"]:
        yield from (("is", proposal, t, most) for t in plan["temperatures"])
    yield from (("is", proposal, 1.0, most) for proposal in plan["others"])
    for proposal in plan["tempered"]:
        yield from (("beam", proposal, 1.0, width) for width in plan["beam_widths"])
    for proposal in [*plan["tempered"], *plan["others"]]:
        yield from (("smc", proposal, 1.0, size) for size in sorted(sizes))


def run(args: argparse.Namespace) -> None:
    """Estimate what is missing in the study's folder."""
    if args.replicate > args.num_samples or 1.0 not in args.temperatures:
        raise SystemExit("--replicate is at most --num-samples; a temperature is 1")
    model, texts = lm_latent_eval.load(args.pretrained), read_texts(args.data)
    texts, checkpoint = texts[: args.limit], model.checkpoint
    proposals = checkpoint.model.proposal_names
    tempered = args.temper or [proposals[0]]
    plan = {
        "lm_latent_eval": lm_latent_eval.__version__,
        "model": checkpoint.name,
        "checkpoint": checkpoint.digest,
        "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16],
        "tempered": tempered,
        "others": [name for name in proposals if name not in tempered],
        **{name: vars(args)[name] for name in GIVEN},
    }
    args.output.mkdir(parents=True, exist_ok=True)
    kept, path = args.output / "settings.json", args.output / "rows.jsonl"
    if kept.exists() and json.loads(kept.read_text()) != plan:
        raise SystemExit(f"{args.output} has another study: name another folder")
    kept.write_text(json.dumps(plan, indent=2) + "\n")
    rows = read_rows(path) if path.exists() else []
    done = {tuple(row[name] for name in SETTING) for row in rows}
    for setting in tqdm(list(settings_of(plan))):
        if setting in done:
            continue
        how = dict(zip(SETTING, setting, strict=True))
        try:
            found = model.log_likelihood(texts, seed=args.seed, unk=args.unk, **how)
        except ValueError as error:  # such as: smc takes proposals that read on alone
            tqdm.write(f"left out, {how}: {error}")
            continue
        head = {**how, "texts": len(texts), "tokens": sum(e.num_tokens for e in found)}
        if setting[0] == "is":
            some = drawn_rows(head, weights(found), args.replicate)
        else:
            level = "token" if setting[0] == "smc" else "instance"
            log_p = torch.tensor([e.log_evidence for e in found]).double().sum()
            some = iter([estimate({**head, "level": level}, log_p[None])])
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in some))


def weights(found: list[lm_latent_eval.Estimate]) -> Tensor:
    """Return log-weights of every text, (N, K) nats."""
    log_w = torch.tensor(np.array([e.log_weights for e in found]))
    log_p = torch.tensor([e.log_evidence for e in found]).double()
    if not torch.allclose(log_evidence(log_w), log_p, rtol=1e-5, atol=1e-4):
        raise SystemExit("a text has several sentences: give one sentence a line")
    return log_w


def drawn_rows(head: Row, log_w: Tensor, replicate: int) -> Iterator[Row]:
    """Yield a row for each k and level, of log-weights (N, K) in nats."""
    num_texts, num_samples = log_w.shape
    for size in sorted({*log_grid(num_samples), replicate}):
        count = num_samples // size
        parts = log_w[:, : count * size].unflatten(1, (count, size))
        log_p = log_evidence(parts)  # (N, count)
        row = {**head, "num_samples": size}
        instance = estimate({**row, "level": "instance"}, log_p.sum(0))
        if count >= FEWEST_REPLICATES:
            fresh = perplexities(row, predicted(log_p))
            if num_texts >= FEWEST_TEXTS:
                ordered = sorted(fresh, key=float)  # of which 2.5 % are cut off
                instance |= {"low": ordered[12], "high": ordered[-13]}
            if size == replicate:
                instance["predicted"] = fresh
                instance["replicates"] = perplexities(row, log_p.sum(0))
        yield instance
        yield estimate({**row, "level": "corpus"}, log_evidence(parts.sum(0)))


def predicted(log_p: Tensor) -> Tensor:
    """Return estimates distributed as one from fresh draws, of replicates (N, R)."""
    num_texts, count = log_p.shape
    mean = log_p.sum(0).mean()
    chosen = np.random.default_rng(0).integers(count, size=(num_texts, RECOMBINED))
    recombined = log_p.gather(1, torch.from_numpy(chosen)).sum(0)
    if not mean.isfinite():
        return recombined  # a text without weight has no spread to correct
    return mean + math.sqrt((count + 1) / (count - 1)) * (recombined - mean)


def estimate(head: Row, log_p: Tensor) -> Row:
    """Return a row of the first of some replicates, (R,) nats."""
    [value] = perplexities(head, log_p[:1])
    return {**head, "log_likelihood": finite(log_p[0].item()), "perplexity": value}


def perplexities(head: Row, log_p: Tensor) -> list[float | str]:
    """Return a perplexity for each of some log-likelihoods."""
    return [finite(perplexity(value, head["tokens"])) for value in log_p.tolist()]


def finite(value: float) -> float | str:
    """Round a number for a row; JSON has none for infinity."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


def read_rows(path: Path) -> list[Row]:
    """Read rows, in which infinities are words."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{**row, "perplexity": float(row["perplexity"])} for row in rows]


# -- tables and claims ---------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One study with one of its tempered proposals."""

    title: str
    settings: Row
    curves: dict[str, pd.DataFrame]
    """Rows by level and number of samples, by temperature or proposal."""
    beams: pd.DataFrame
    """Rows by width."""

    def last(self, curve: str, level: str = "instance") -> float:
        """Return the perplexity from all samples."""
        return float(self.curves[curve].loc[level].perplexity.iloc[-1])


def read_columns(studies: list[Path]) -> list[Column]:
    """Read studies; other proposals stand beside ``peeking`` or the first."""
    columns = []
    for study in studies:
        settings = json.loads((study / "settings.json").read_text("utf-8"))
        rows = pd.DataFrame(read_rows(study / "rows.jsonl")).sort_values("num_samples")
        is_beam = rows.estimator == "beam"
        drawn = dict(iter(rows[~is_beam].groupby(["proposal", "temperature"])))
        tempered = settings["tempered"]
        home = "peeking" if "peeking" in tempered else tempered[0]
        for proposal in tempered:
            named = {f"τ = {t:g}": (proposal, t) for t in settings["temperatures"]}
            if proposal == home:
                named |= {name: (name, 1.0) for name in settings["others"]}
            curves = {
                name: drawn[key].set_index(["level", "num_samples"]).sort_index()
                for name, key in named.items()
                if key in drawn
            }
            beams = rows[is_beam & (rows.proposal == proposal)].set_index("num_samples")
            title = f"{settings['model']}, {proposal}"
            columns.append(Column(title, settings, curves, beams))
    return columns


def table_1(columns: list[Column]) -> pd.DataFrame:
    """Return perplexities from all samples, by level and curve, a column each."""
    found = {
        each.title: {
            (level, name): each.last(name, level)
            for level in ("corpus", "instance", "token")
            for name, frame in each.curves.items()
            if level in frame.index
        }
        for each in columns
    }
    return pd.DataFrame(found).sort_index(level=0, sort_remaining=False)


def claims(columns: list[Column]) -> Iterator[str]:
    """Yield the claims of the paper, each with the numbers that decide it."""
    curves = [(each, name) for each in columns for name in each.curves]
    steps = [each.curves[name].loc["instance"].perplexity for each, name in curves]
    falls = sum(not (curve > curve.shift()).any() for curve in steps)
    yield f"(a) Estimates fall with K: {falls} of {len(steps)} curves, at every step"
    ratios = [each.last(name, "corpus") / each.last(name) for each, name in curves]
    above = sum(ratio > 1 for ratio in ratios)
    yield (
        f"(b) Instance level lies below corpus level: {above} of {len(ratios)} times, "
        f"by factors of {min(ratios):.3g} to {max(ratios):.3g}"
    )
    for each in columns:
        best = min((n for n in each.curves if n.startswith("τ")), key=each.last)
        yield (
            f"(c) Raised temperatures are best, {each.title}: {best} gives "
            f"{each.last(best):.5g}, τ = 1 {each.last('τ = 1'):.5g}"
        )
        own = "peeking" if "peeking" in each.curves else "τ = 1"
        others = [name for name in ("nonpeeking", "prior") if name in each.curves]
        if others:
            numbers = [f"{name} {each.last(name):.5g}" for name in (own, *others)]
            yield f"(d) Peeking beats others, {each.title}: {', '.join(numbers)}"
        if len(each.beams):
            width, drawn = each.beams.index[-1], each.curves["τ = 1"].loc["instance"]
            size = width if width in drawn.index else drawn.index[-1]
            yield (
                f"(e) Beams come close to samples, {each.title}: {width} latents give "
                f"{each.beams.perplexity.iloc[-1]:.5g}, {size} samples "
                f"{drawn.perplexity[size]:.5g}"
            )


def report(args: argparse.Namespace) -> None:
    """Write tables, claims and figures of studies."""
    columns = read_columns(args.studies)
    args.output.mkdir(parents=True, exist_ok=True)
    shown = []
    beams = pd.DataFrame({each.title: each.beams.perplexity for each in columns})
    for name, frame in (("table_1", table_1(columns)), ("table_2", beams)):
        frame.to_csv(args.output / f"{name}.csv")
        shown.append(frame.to_string(na_rep="", float_format="{:,.4g}".format))
    text = "\n\n".join([*shown, "\n".join(sorted(claims(columns)))])
    (args.output / "tables.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    draw(columns, args.output / "figure_2", partial(curves, most=100))
    draw(columns, args.output / "figure_3", curves)
    draw(columns, args.output / "figure_4", ridges)


# -- figures -------------------------------------------------------------------------

COLOURS = ("#332288", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Of temperatures, the lowest first; told apart by the colour-blind."""
DASHES = ("--", "-.", ":")
Looks = dict[str, dict[str, Any]]


def draw(columns: list[Column], path: Path, panel: Callable[..., None]) -> None:
    """Write a figure as PNG and PDF, a panel a column."""
    names = dict.fromkeys(name for each in columns for name in each.curves)
    tempered = [name for name in names if name.startswith("τ")]
    others = [name for name in names if name not in tempered]
    looks: Looks = {
        **{n: {"color": c} for n, c in zip(tempered, COLOURS * 3, strict=False)},
        **{
            n: {"color": "0.2", "ls": d}
            for n, d in zip(others, DASHES * 3, strict=False)
        },
    }
    across, down = min(2, len(columns)), -(-len(columns) // 2)
    figure = Figure(figsize=(4.5 * across, 3.5 * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flat
    for ax, each in zip(axes, columns, strict=False):
        panel(ax, each, looks)
        ax.set_title(each.title)
    lines = [Line2D([], [], **look) for look in looks.values()]
    figure.legend(lines, looks, loc="outside lower center", ncols=5, frameon=False)
    for ending in (".png", ".pdf"):
        figure.savefig(path.with_suffix(ending), dpi=200)


def curves(ax: Any, column: Column, looks: Looks, most: float = np.inf) -> None:
    """Draw perplexity over samples, with where 95 % of fresh estimates lie."""
    for name, frame in column.curves.items():
        rows = frame.loc["instance"].loc[:most]
        ax.plot(rows.index, rows.perplexity, **looks[name])
        if "low" in rows:
            ends = rows.low.astype(float), rows.high.astype(float)
            colour = looks[name]["color"]
            ax.fill_between(rows.index, *ends, color=colour, alpha=0.2, linewidth=0)
    ax.set(yscale="log", xscale="log" if most == np.inf else "linear")
    ax.set(xlabel="samples a text (K)", ylabel="token perplexity (instance level)")
    ax.yaxis.set(major_formatter=LogFormatter(), minor_formatter=LogFormatter())


def ridges(ax: Any, column: Column, looks: Looks) -> None:
    """Draw how estimates are distributed, a ridge a curve about its own median."""
    size, names = column.settings["replicate"], []
    for name, frame in column.curves.items():
        row, colour = frame.loc["instance", size], looks[name]["color"]
        values = np.array(row.get("predicted", math.nan), float)
        if not np.isfinite(values).all() or not values.std():
            continue
        median, base = np.median(values), -len(names)
        away = 100 * (values / median - 1)
        drawn = 100 * (np.array(row["replicates"], float) / median - 1)
        grid = np.linspace(away.min(), away.max(), 200)
        height = gaussian_kde(away)(grid)
        height *= 0.85 / height.max()
        ax.fill_between(grid, base, base + height, color=colour, alpha=0.35)
        ax.plot(drawn, 0 * drawn + base, "|", color=colour)
        names.append(f"{name}: {median:,.4g} ± {away.std():.2g} %")
    ax.set_yticks(-np.arange(len(names)), names)
    ax.set_xlabel(f"% from the median, K = {size}")


# -- the command line ----------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="estimate a corpus in every way")
    one.add_argument("--pretrained", required=True, help="checkpoint or repository")
    one.add_argument("--data", type=Path, required=True, help="one text a line")
    one.add_argument("--output", type=Path, required=True, help="folder of the study")
    one.add_argument("--limit", type=int, help="only the first texts")
    one.add_argument("--temper", nargs="+", help="proposals (default: the first)")
    one.add_argument("--temperatures", nargs="+", type=float, default=TEMPERATURES)
    one.add_argument("--num-samples", type=int, default=1000, help="K, a text")
    one.add_argument("--replicate", type=int, default=100, help="k of figure 4")
    one.add_argument("--beam-widths", nargs="*", type=int, default=BEAM_WIDTHS)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--unk", help="cost of unknown words (docs/options.md)")
    one.set_defaults(command=run)
    shown = commands.add_parser("report", help="write tables and figures")
    shown.add_argument("studies", type=Path, nargs="+", metavar="STUDY")
    shown.add_argument("--output", type=Path, required=True)
    shown.set_defaults(command=report)
    args = parser.parse_args(arguments)
    args.command(args)


if __name__ == "__main__":
    main()
