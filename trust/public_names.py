"""A name that a volunteer shows beside the id of a machine: chosen freely, never an identity, and of letters that cannot pass for something else.

Whoever reads a stranger's name goes through `shown_name`: what the rules refuse is no name at all. Two machines may have the same one; the id tells them apart.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from dcnr.errors import InvalidInput

MAX_LETTERS: Final = 32
MAX_BYTES: Final = 96
"""Encoded as UTF-8; checked before anything else is looked at."""
MAX_MARKS: Final = 2
"""Accents that may stand on one letter without being part of it."""
SEPARATORS: Final = " -_.'"
RESERVED: Final = frozenset(
    ("admin", "administrator", "dcnr", "gateway", "maintainer", "moderator", "official", "orchestrator", "root", "support", "system", "trusted",
     "verified", "verifier")
)  # fmt: skip
"""A name with such a word would speak for the network."""
_SEPARATOR: Final = f"[{re.escape(SEPARATORS)}]"
_AS_LETTERS: Final = str.maketrans("01345", "oieas")
_LIKE_AN_ID: Final = re.compile("[0-9a-f]{6,}")
_WRITTEN_TOGETHER: Final = (frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}), frozenset({"CJK", "HANGUL"}))


def check_public_name(text: str) -> str:
    """``text``, if it may be shown; the empty one is no name. Raises InvalidInput (``bad_public_name``), naming what is wrong."""
    if text and (why := _trouble(text)):
        raise InvalidInput(
            f"{text[:MAX_LETTERS]!r} cannot be shown as a name: {why}", code="bad_public_name",
            remedy=f"letters of one script, digits, spaces and -_.' between them, at most {MAX_LETTERS}; no word that speaks for the network",
        )  # fmt: skip
    return text


def shown_name(text: str) -> str:
    """A stranger's name, or nothing where the rules refuse it. Never raises."""
    return "" if _trouble(text) else text


def _trouble(text: str) -> str:
    """What is wrong with a name; empty where nothing is."""
    if len(text) > MAX_LETTERS or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        return f"it is longer than {MAX_LETTERS} letters"
    if unicodedata.normalize("NFKC", text) != text:
        return "it has letters that stand for others"
    if any(not _is_allowed(letter) for letter in text):
        return "it has a character that is no letter, digit or separator"
    if re.search(rf"\A{_SEPARATOR}|{_SEPARATOR}\Z|{_SEPARATOR}{{2}}", text.replace(". ", ".")):
        return "separators stand between letters, one at a time (after a dot a space may follow)"
    if _has_heap_of_marks(text):
        return "marks are heaped on a letter"
    letters = [letter for letter in text if unicodedata.category(letter).startswith("L")]
    if not letters:
        return "it has no letter"
    scripts = {unicodedata.name(letter, "?").split()[0] for letter in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
        return "it mixes scripts"
    return _passes_for_another(text)


def _is_allowed(letter: str) -> bool:
    return letter in SEPARATORS or letter in "0123456789" or unicodedata.category(letter) in ("Lu", "Ll", "Lo", "Lt", "Mn", "Mc")


def _has_heap_of_marks(text: str) -> bool:
    marks = MAX_MARKS  # none at the beginning
    for letter in text:
        marks = marks + 1 if unicodedata.category(letter).startswith("M") else 0
        if marks > MAX_MARKS:
            return True
    return False


def _passes_for_another(text: str) -> str:
    lower = text.casefold()
    joined = re.sub(_SEPARATOR, "", lower)
    words = {*re.split(_SEPARATOR, lower), joined}
    if not RESERVED.isdisjoint(words | {word.translate(_AS_LETTERS) for word in words}):
        return "it speaks for the network"
    if any(_LIKE_AN_ID.fullmatch(word) for word in words):
        return "it looks like an id"
    return ""
