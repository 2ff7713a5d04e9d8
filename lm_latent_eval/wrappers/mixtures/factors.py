"""Factors of a mixture: prompts, examples, orders and documents, with their weights.

A component has one variant of every factor, and its weight is the product of theirs. A
variant rewrites strings, so any model that scores strings can be mixed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lm_latent_eval.text.files import digest

CONTEXT, DOCUMENT = "{context}", "{document}"
Rewrite = Callable[[str, str], tuple[str, str]]
"""Function from a question's context and answer to those that a model is given."""
SHOWN = 40
"""Largest length of a text that is its own name, in characters."""
MOST_OPTIONS = 12
"""Largest number of options whose orders are numbered: 479,001,600 orders."""


@dataclass(frozen=True)
class Variant:
    """One value of a factor for a question; ``log_weight`` in nats."""

    name: str
    log_weight: float
    rewrite: Rewrite = field(repr=False, compare=False)


class Factor(Protocol):
    """A property in which components differ, with its name in results."""

    @property
    def name(self) -> str: ...

    def variants(self, context: str) -> Sequence[Variant]:
        """Variants for a question, by name; weights total 1.

        Raises:
            ValueError: If the question has none.
        """
        ...


def unchanged(context: str, text: str) -> tuple[str, str]:
    return context, text


def short(text: str) -> str:
    """Name of a text: itself, or its beginning and a digest.

    Example:
        >>> short("{context}"), short("x" * 50)
        ('{context}', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... 77cf1206')
    """
    plain = " ".join(text.split())
    if len(plain) <= SHOWN and plain == text:
        return plain
    return f"{plain[: SHOWN - 10]}... {digest(text)[:8]}"


def weighed(entries: Sequence[tuple[str, float, Rewrite]], what: str) -> list[Variant]:
    """Build variants from names, weights and rewrites, sorted by name.

    Raises:
        ValueError: If there is none, or two of one name.
    """
    if not entries:
        raise ValueError(f"{what}: there is none; give one at least")
    total = math.fsum(weight for _, weight, _ in entries)
    names = [name for name, _, _ in entries]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{what}: {double!r} is there twice; give each another name")
    return sorted(
        (Variant(n, math.log(weight / total), do) for n, weight, do in entries),
        key=lambda variant: variant.name,
    )


@dataclass(frozen=True)
class Fixed:
    """A factor with the same variants for all questions."""

    name: str
    listed: Sequence[Variant]

    def variants(self, context: str) -> Sequence[Variant]:
        return self.listed


def around(template: str) -> Rewrite:
    r"""Rewrite that puts a context into a template with one ``{context}``.

    Example:
        >>> around("Think.\n{context}")("2 + 2 =", " 4")
        ('Think.\n2 + 2 =', ' 4')
    """
    before, _, after = template.partition(CONTEXT)
    return lambda context, text: (before + context + after, text)


# -- orders of options ----------------------------------------------------------------

_LINE = re.compile(
    r"(?m)^(?P<head>[ \t]*\(?(?P<label>[A-Z]|\d+)[.):][ \t]+)(?P<text>.*)$"
)
_ANSWER = re.compile(r"(?P<before>\s*\(?)(?P<label>[A-Z]|\d+)(?P<after>[.)]*\s*)")


@dataclass(frozen=True)
class Listing:
    """Options that a context lists, one a line."""

    spans: tuple[tuple[int, int], ...]
    """Spans of their texts in the context."""
    labels: tuple[str, ...]

    @classmethod
    def of(cls, context: str) -> Listing:
        r"""Find the last list of a context with labels A, B, ... or 1, 2, ...

        Raises:
            ValueError: If there is no list of two options or more.

        Example:
            >>> Listing.of("Which?\nA. a cat\nB. a dog\nAnswer:").labels
            ('A', 'B')
        """
        best: list[re.Match[str]] = []
        run: list[re.Match[str]] = []
        for line in _LINE.finditer(context):
            follows = run and context[run[-1].end() : line.start()] == "\n"
            if follows and line["label"] == _label(run[0]["label"], len(run)):
                run.append(line)
            else:
                run = [line] if line["label"] in ("A", "1") else []
            if len(run) > 1:
                best = run
        if not best:
            raise ValueError(
                "permutations: the question lists no options that could stand in "
                "another order; expected lines such as 'A. ...', 'B. ...' one below "
                "the other"
            )
        if len(best) > MOST_OPTIONS:
            raise ValueError(
                f"permutations: {len(best)} options have too many orders to number; "
                f"{MOST_OPTIONS} is the most"
            )
        return cls(
            tuple(line.span("text") for line in best),
            tuple(line["label"] for line in best),
        )

    def ordered(self, order: Sequence[int]) -> Rewrite:
        r"""Rewrite that permutes options and renames an answer that is a label.

        Args:
            order: Option at each position.

        Example:
            >>> asked = "A. a cat\nB. a dog\nC. a fox\nAnswer:"
            >>> context, answer = Listing.of(asked).ordered([2, 0, 1])(asked, " A")
            >>> context.splitlines(), answer
            (['A. a fox', 'B. a cat', 'C. a dog', 'Answer:'], ' B')
        """

        def rewrite(context: str, text: str) -> tuple[str, str]:
            shown, last = [], 0
            for (start, end), option in zip(self.spans, order, strict=True):
                shown += [context[last:start], context[slice(*self.spans[option])]]
                last = end
            return "".join([*shown, context[last:]]), self._renamed(
                text, order, [context[slice(*span)].strip() for span in self.spans]
            )

        return rewrite

    def _renamed(self, text: str, order: Sequence[int], options: Sequence[str]) -> str:
        """Answer with its label, if it is one, changed to that of its new position."""
        match = _ANSWER.fullmatch(text)
        if match is None:
            return text
        is_option, is_label = text.strip() in options, match["label"] in self.labels
        if is_option and not is_label:
            return text
        if is_option or not is_label:
            which = "both a label and an option" if is_option else "no label"
            raise ValueError(
                f"permutations: the answer {text!r} is {which} of the list in its "
                f"question ({', '.join(self.labels)}), so its label in another order "
                "is unknown"
            )
        position = list(order).index(self.labels.index(match["label"]))
        return f"{match['before']}{self.labels[position]}{match['after']}"


def _label(first: str, position: int) -> str:
    return str(1 + position) if first == "1" else chr(ord("A") + position)


@dataclass(frozen=True)
class Permutations(Sequence[Variant]):
    """Every order of N options, by number, made on access."""

    listing: Listing

    def __len__(self) -> int:
        return math.factorial(len(self.listing.labels))

    def __getitem__(self, index: int) -> Variant:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        rest = list(range(len(self.listing.labels)))
        order = []
        while rest:
            position, index = divmod(index, math.factorial(len(rest) - 1))
            order.append(rest.pop(position))
        return _order(self.listing, order, len(self))


def _order(listing: Listing, order: Sequence[int], num_orders: int) -> Variant:
    name = " ".join(listing.labels[option] for option in order)
    return Variant(name, -math.log(num_orders), listing.ordered(order))


@dataclass(frozen=True)
class Orders:
    """Orders of a question's options: ``all`` N!, or the N rotations (``cyclic``)."""

    kind: str
    name: str = "order"

    def variants(self, context: str) -> Sequence[Variant]:
        listing = Listing.of(context)
        if self.kind == "all":
            return Permutations(listing)
        size = len(listing.labels)
        rotations = [[(n + k) % size for n in range(size)] for k in range(size)]
        return [_order(listing, order, size) for order in rotations]


# -- documents ------------------------------------------------------------------------


Document = tuple[str, float, str]
"""Name, relative weight and text of a retrieved document."""
Retrieve = Callable[[str], Sequence[Document]]
"""Function from a question's context to documents."""


@dataclass(frozen=True)
class Documents:
    """Document that stands before a question."""

    retrieve: Retrieve
    template: str
    """Template with one ``{document}`` and at most one ``{context}``."""
    name: str = "document"

    def variants(self, context: str) -> Sequence[Variant]:
        documents = self.retrieve(context)
        entries = [(name, w, self._around(text)) for name, w, text in documents]
        return weighed(entries, f"documents of {context!r:.60}")

    def _around(self, document: str) -> Rewrite:
        before, _, after = self.template.partition(DOCUMENT)

        def rewrite(context: str, text: str) -> tuple[str, str]:
            parts = (part.replace(CONTEXT, context) for part in (before, after))
            return document.join(parts), text

        return rewrite
