"""For the documentation's API page: the doctests of a docstring as blocks of code."""

import re

import griffe

_BLOCK = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$|>>> ).*\n?)*)+", re.M)


class Doctests(griffe.Extension):
    """Puts a fence around every run of doctest lines, with what they print."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            text = griffe.Docstring(obj.docstring.value).value
            obj.docstring.value = _BLOCK.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)
