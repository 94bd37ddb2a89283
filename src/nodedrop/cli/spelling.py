"""Names that somebody types, and the one they may have meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from ..errors import InputError


def require_known(name: str, names: Collection[str], what: str) -> None:
    """An error that says which name is near, and all that there are.

    >>> require_known("minst", ["mnist", "text"], "there is no recipe")
    Traceback (most recent call last):
    nodedrop.errors.InputError: there is no recipe 'minst', did you mean mnist? there are mnist, text
    """
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f", did you mean {near[0]}? " if near else "; "
        raise InputError(f"{what} '{name}'{hint}there are {', '.join(names)}")
