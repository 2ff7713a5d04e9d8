"""Latents of texts as plain text, JSON lines or one page of HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from itertools import accumulate, cycle

import jinja2

from lm_latent_eval.latent import Description, Span
from lm_latent_eval.report.figures import COLOURS
from lm_latent_eval.scoring.inside.latents import BestLatent, BestLatents

LEVEL, LETTER, GAP = 28, 8.5, 18
"""Pixels of a picture of a tree: height of a level, width of a letter, and between
words."""

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Latents</title>
<style>
:root { --paper: #fff; --ink: #1b1b1b; --faint: #888; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #141414; --ink: #e8e8e8; }
}
body { background: var(--paper); color: var(--ink); margin: 0 auto; max-width: 60rem;
  padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 0; }
figure { margin: 1rem 0 1.5rem; }
figcaption { font-size: .9rem; opacity: .8; }
.scroll { overflow-x: auto; }
.words { line-height: 2.6; }
ruby { border-bottom: 3px solid; ruby-align: center; }
rt { font-size: .7rem; padding: 0 .3em; }
.legend { font-size: .9rem; list-style: none; padding: 0; }
.legend li::before { content: "\\25a0  "; color: var(--colour); }
svg { display: block; font: 14px system-ui, sans-serif; }
svg text { fill: currentColor; }
svg line { stroke: var(--faint); }
code { overflow-wrap: anywhere; }
</style>
<h1>The most probable latents</h1>
{% for text in texts %}
<h2>{{ text.words | join(" ") }}</h2>
{% for latent in text.latents %}
<figure>
<figcaption>log p(x, z) = {{ "%.4f" | format(latent.log_joint) }} nats, \
{{ share(latent) }} of p(x)</figcaption>
{{ picture(text.words, latent.description) | safe }}
</figure>
{% endfor %}
{% endfor %}
</html>
"""


def plain(texts: Iterable[BestLatents]) -> str:
    lines = []
    for text in texts:
        lines.append(f"{text.index}: {' '.join(text.words)}")
        for latent in text.latents:
            log_p = f"{latent.log_joint:.4f} nats"
            lines.append(f"  {log_p}, {share(latent)}: {latent.description.text}")
    return "".join(f"{line}\n" for line in lines)


def json_lines(texts: Iterable[BestLatents]) -> str:
    """Write a text and its latents as an object a line."""
    return "".join(
        f"{json.dumps(asdict(text), ensure_ascii=False)}\n" for text in texts
    )


def page(texts: Iterable[BestLatents]) -> str:
    """Write texts and latents as a page of HTML, in which strings are escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(_PAGE).render(
        texts=texts, share=share, picture=picture
    )


def share(latent: BestLatent) -> str:
    """Write the share of p(x): a bound where the search has left latents out."""
    percent = f"{100 * latent.share:.2f} %"
    return percent if latent.is_exact else f"at most {percent}"


def picture(words: list[str], description: Description) -> str:
    """Draw a tree, or the words with their spans in the colours of their groups.

    Returns:
        HTML, in which all strings are escaped.
    """
    if description.is_tree:
        return f'<div class="scroll">{_tree(words, description)}</div>'
    if not description.spans:
        return f"<p><code>{escape(description.text)}</code></p>"
    groups = dict.fromkeys(span.group for span in description.spans)
    colours = dict(zip(groups, cycle(COLOURS), strict=False))
    parts, position, legend = list[str](), 0, dict[str, str]()
    before = Span(0, 0, "")
    for span in description.spans:
        colour, inside = colours[span.group], " ".join(words[span.start : span.end])
        name, colon, _ = span.label.partition(":")
        if colon:  # what is too long to stand over each mention
            legend[span.label] = colour
        if (before.end, before.label) == (span.start, span.label):
            name = ""  # it stands over the word before
        before = span
        parts += map(escape, words[position : span.start])
        parts.append(
            f'<ruby style="border-color: {colour}">{escape(inside)}'
            f"<rt>{escape(name)}</rt></ruby>"
        )
        position = span.end
    parts += map(escape, words[position:])
    listed = "".join(
        f'<li style="--colour: {colour}">{escape(label)}</li>'
        for label, colour in legend.items()
    )
    shown = f'<ul class="legend">{listed}</ul>' if listed else ""
    return f'<p class="words">{" ".join(parts)}</p>{shown}'


def _tree(words: list[str], description: Description) -> str:
    """Draw constituents over words: each is a node above the middle of its parts."""
    widths = [LETTER * len(word) + GAP for word in words]
    middles = [
        end - width / 2 for end, width in zip(accumulate(widths), widths, strict=True)
    ]
    # What is whole so far: first word -> word after the last, place and height.
    whole = {n: (n + 1, middle, 0) for n, middle in enumerate(middles)}
    edges = []
    for span in description.spans:
        parts, position = [], span.start
        while position < span.end:
            parts.append(whole.pop(position))
            position = parts[-1][0]
        height = 1 + max(level for *_, level in parts)
        middle = (parts[0][1] + parts[-1][1]) / 2
        whole[span.start] = (span.end, middle, height)
        edges += [(middle, height, x, level) for _, x, level in parts]
    tallest = max((level for *_, level in whole.values()), default=0)
    floor = (tallest + 1) * LEVEL
    lines = [
        f'<line x1="{x1}" y1="{floor - (up + 0.6) * LEVEL}" x2="{x2}" '
        f'y2="{floor - (down + 0.6) * LEVEL}"/>'
        for x1, up, x2, down in edges
    ]
    labels = [
        f'<text x="{x}" y="{floor}" text-anchor="middle">{escape(word)}</text>'
        for x, word in zip(middles, words, strict=True)
    ]
    size = f'width="{sum(widths)}" height="{floor + 8}"'
    return f"<svg {size}>{''.join([*lines, *labels])}</svg>"
