"""Factors of a mixture: prompts, examples, orders and documents, with their weights.

A component has one variant of every factor, and its weight is the product of theirs.
What a variant does to a question is a function of the question's strings, so any model
that scores strings can be mixed.
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
"""Context and answer of a question -> those that a model is asked with."""
SHOWN = 40
"""Characters of a text that it is named by."""
MOST_OPTIONS = 12
"""Options whose orders can be numbered: there are 479,001,600 of them."""


@dataclass(frozen=True)
class Variant:
    """One value of a factor for a question."""

    name: str
    log_weight: float
    """Nats."""
    rewrite: Rewrite = field(repr=False, compare=False)


class Factor(Protocol):
    """A property in which components differ."""

    @property
    def name(self) -> str:
        """Its name in results: ``prompt``, ``document``, ..."""
        ...

    def variants(self, context: str) -> Sequence[Variant]:
        """Return its variants for a question, by name; weights total 1.

        Raises:
            ValueError: If the question has nothing of the kind.
        """
        ...


def unchanged(context: str, text: str) -> tuple[str, str]:
    """Leave context and answer unchanged."""
    return context, text


def short(text: str) -> str:
    r"""Return what a text is named by: itself, or its beginning and a digest.

    Example:
        >>> short("{context}"), short("x" * 50)
        ('{context}', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... 77cf1206')
    """
    plain = " ".join(text.split())
    if len(plain) <= SHOWN and plain == text:
        return plain
    return f"{plain[: SHOWN - 10]}... {digest(text)[:8]}"


def weighed(found: Sequence[tuple[str, float, Rewrite]], what: str) -> list[Variant]:
    """Return variants of given weights, sorted by name.

    Args:
        found: Name, weight and effect of each.
        what: They are, for errors.

    Raises:
        ValueError: If there is none, or two of one name.
    """
    if not found:
        raise ValueError(f"{what}: there is none; give one at least")
    total = math.fsum(weight for _, weight, _ in found)
    names = [name for name, _, _ in found]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{what}: {double!r} is there twice; give each another name")
    return sorted(
        (Variant(n, math.log(weight / total), do) for n, weight, do in found),
        key=lambda variant: variant.name,
    )


@dataclass(frozen=True)
class Fixed:
    """A factor that can be the same for all questions."""

    name: str
    listed: Sequence[Variant]

    def variants(self, context: str) -> Sequence[Variant]:
        """Return all of them."""
        return self.listed


def around(template: str) -> Rewrite:
    r"""Return what puts a context into a template, which has ``{context}`` once.

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
    """Options as a context lists them, a line each."""

    spans: tuple[tuple[int, int], ...]
    """Positions of their texts in the context."""
    labels: tuple[str, ...]

    @classmethod
    def of(cls, context: str) -> Listing:
        r"""Find the last list of a context, whose labels are A, B, ... or 1, 2, ...

        Raises:
            ValueError: If there is none of two options or more.

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
        r"""Return what puts options into another order, and asks for their labels.

        Args:
            order: Which option each place shows.

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
        """Return an answer that is a label with that of where its option stands."""
        found = _ANSWER.fullmatch(text)
        if found is None:
            return text
        is_option, is_label = text.strip() in options, found["label"] in self.labels
        if is_option and not is_label:
            return text
        if is_option or not is_label:
            which = "both a label and an option" if is_option else "no label"
            raise ValueError(
                f"permutations: the answer {text!r} is {which} of the list in its "
                f"question ({', '.join(self.labels)}), so nobody can tell what it is "
                "in another order"
            )
        place = list(order).index(self.labels.index(found["label"]))
        return f"{found['before']}{self.labels[place]}{found['after']}"


def _label(first: str, place: int) -> str:
    return str(1 + place) if first == "1" else chr(ord("A") + place)


@dataclass(frozen=True)
class Permutations(Sequence[Variant]):
    """Every order of N options, by number: none is made before it is asked for."""

    listing: Listing

    def __len__(self) -> int:
        """Return N!."""
        return math.factorial(len(self.listing.labels))

    def __getitem__(self, number: int) -> Variant:  # type: ignore[override]
        """Return the order with this number; slices are not supported."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        rest = list(range(len(self.listing.labels)))
        order, left = [], number
        while rest:
            place, left = divmod(left, math.factorial(len(rest) - 1))
            order.append(rest.pop(place))
        return _order(self.listing, order, len(self))


def _order(listing: Listing, order: Sequence[int], number: int) -> Variant:
    name = " ".join(listing.labels[option] for option in order)
    return Variant(name, -math.log(number), listing.ordered(order))


@dataclass(frozen=True)
class Orders:
    """The order of the options that a question lists: ``all``, or ``cyclic`` ones."""

    kind: str
    name: str = "order"

    def variants(self, context: str) -> Sequence[Variant]:
        """Return N! orders, or those N that begin elsewhere and go round.

        Raises:
            ValueError: If the question lists no options.
        """
        listing = Listing.of(context)
        if self.kind == "all":
            return Permutations(listing)
        number = len(listing.labels)
        turned = [[(n + k) % number for n in range(number)] for k in range(number)]
        return [_order(listing, order, number) for order in turned]


# -- documents ------------------------------------------------------------------------


Document = tuple[str, float, str]
"""Name, weight relative to the others, and text of a retrieved document."""
Retrieve = Callable[[str], Sequence[Document]]
"""A question's context -> documents."""


@dataclass(frozen=True)
class Documents:
    """The document that a question is asked with."""

    retrieve: Retrieve
    template: str
    """With ``{document}`` once, and ``{context}`` once or never."""
    name: str = "document"

    def variants(self, context: str) -> Sequence[Variant]:
        """Return those of a question.

        Raises:
            ValueError: If there is none, or two of one name.
        """
        found = self.retrieve(context)
        asked = [(name, weight, self._around(text)) for name, weight, text in found]
        return weighed(asked, f"documents of {context!r:.60}")

    def _around(self, document: str) -> Rewrite:
        before, _, after = self.template.partition(DOCUMENT)

        def rewrite(context: str, text: str) -> tuple[str, str]:
            parts = (part.replace(CONTEXT, context) for part in (before, after))
            return document.join(parts), text

        return rewrite
