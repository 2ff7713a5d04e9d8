"""Odd texts and odd values."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tests.tiny_checkpoint import COPIED, UTTERED

WORDS = (*UTTERED, *COPIED, "zebra", "U.S.", "don't", "1,000")
ODD = (
    *("<unk>", "</s>", "<s>", "<pad>", "@@START@@", "@@END@@", "@@UNKNOWN@@"),
    *("@@PADDING@@", "@@NEWLINE@@", "(S (NP the fox))", "-LRB-", "NaN", "\\N"),
    *('{"text": "the fox"}', "[]", "--output", "%s", "{0}"),
    *("\0", "\ufeff", "\u2028", "\x85", "\x1b[31m", "\x7f", "\u200b", "\u202e"),
    *("\ud800", "\udfff\ud800", "\U0010ffff", "\ufffe", "👩‍👩‍👧", "ﷺ", "İ", "ß"),
    *("e" + "\u0301" * 200, "x" * 700, "ы" * 700, "." * 12, "’s’s", "_" * 9),
    *("\r\n", "\r", "\n", "\t", "\v\f", "\xa0", "\u3000"),
)
UNICODE = st.text(st.characters(exclude_categories=()), max_size=8)
"""Any code points, the lone halves of pairs among them."""
PIECE = st.one_of(st.sampled_from(WORDS), st.sampled_from(ODD), UNICODE)

TEXTS = st.lists(
    st.tuples(PIECE, st.sampled_from((" ", " ", " ", "", "\n", "  "))), max_size=5
).map(lambda pieces: "".join(piece + gap for piece, gap in pieces))
"""Texts of known, unknown and impossible words."""

NUMBERS = st.one_of(
    st.sampled_from((0, 1, 2, 3, 10, -1, 2**31, 2**63, 10**9, 10**30)),
    st.sampled_from((0.0, -0.0, 0.5, 1.0, 1e3, 1.5, 1e-3, 1e300, 5e-324)),
    st.sampled_from((math.inf, -math.inf, math.nan)),
    st.integers(),
    st.floats(),
)
SCALARS = st.one_of(
    NUMBERS,
    st.none(),
    st.booleans(),
    st.sampled_from(("", " ", "1", "1e3", "-1", "nan", "inf", "true", "None", "0x10")),
    st.sampled_from(("١٢", "1_000", "10 ", "+5", "auto", "auto:2", "é", "is", "beam")),
    st.text(max_size=6),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
)
"""What JSON and Python can put where a number or a name is expected."""
