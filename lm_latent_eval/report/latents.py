"""Latents of texts as plain text, JSON lines or one page of HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from html import escape

import jinja2

from lm_latent_eval.latent import Description
from lm_latent_eval.report.figures import COLOURS
from lm_latent_eval.scoring.inside.latents import BestLatent, BestLatents

WORD, LEVEL = 64, 26
"""Pixels of a picture of a tree: a word is as wide, a level as high."""

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Latents</title>
<style>
body { font: 16px sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
figure { margin: 1em 0; overflow-x: auto; }
.mention { border-bottom: 3px solid; padding-bottom: 1px; }
small { color: #777; }
svg { font: 14px sans-serif; }
</style>
<h1>The most probable latents</h1>
{% for text in texts %}
<h2>{{ text.words | join(" ") }}</h2>
{% for latent in text.latents %}
<figure>
<figcaption>log p(x, z) = {{ "%.4f" | format(latent.log_joint) }} nats, \
{{ share(latent) }} of p(x)</figcaption>
<p>{{ picture(text.words, latent.description) | safe }}</p>
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
        return _tree(words, description)
    if not description.spans:
        return f"<code>{escape(description.text)}</code>"
    parts, position = list[str](), 0
    for span in description.spans:
        colour = COLOURS[span.group % len(COLOURS)]
        inside = escape(" ".join(words[span.start : span.end]))
        parts += map(escape, words[position : span.start])
        parts.append(
            f'<span class="mention" style="border-color: {colour}">{inside}</span> '
            f"<small>{escape(span.label)}</small>"
        )
        position = span.end
    return " ".join([*parts, *map(escape, words[position:])])


def _tree(words: list[str], description: Description) -> str:
    """Draw constituents over words: each is a node above the middle of its parts."""
    # What is whole so far: first word -> word after the last, place and height.
    whole = {n: (n + 1, (n + 0.5) * WORD, 0) for n in range(len(words))}
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
        f'<line x1="{x1}" y1="{floor - (up + 0.5) * LEVEL}" x2="{x2}" '
        f'y2="{floor - (down + 0.5) * LEVEL}" stroke="#777"/>'
        for x1, up, x2, down in edges
    ]
    labels = [
        f'<text x="{(n + 0.5) * WORD}" y="{floor}" text-anchor="middle">'
        f"{escape(word)}</text>"
        for n, word in enumerate(words)
    ]
    size = f'width="{len(words) * WORD}" height="{floor + 8}"'
    return f"<svg {size}>{''.join([*lines, *labels])}</svg>"
