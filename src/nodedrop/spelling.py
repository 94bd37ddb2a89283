"""Names that somebody types, and the one they may have meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from .errors import InputError


def near(name: str, names: Collection[str], form: str = "{}") -> str:
    """The name that may have been meant, as a question; nothing if none is like it.

    >>> near("domian", ["domain", "lam"], "{}="), near("x", ["domain"])
    (', did you mean domain=?', '')
    """
    return "".join(f", did you mean {form.format(found)}?" for found in get_close_matches(name, names, 1))


def require_known(name: str, names: Collection[str], what: str) -> None:
    """An error that says which name is near, and all that there are.

    >>> require_known("minst", ["mnist", "text"], "there is no recipe")
    Traceback (most recent call last):
    nodedrop.errors.InputError: there is no recipe 'minst', did you mean mnist? there are mnist, text
    """
    if name not in names:
        raise InputError(f"{what} '{name}'{near(name, names) or ';'} there are {', '.join(names)}")
