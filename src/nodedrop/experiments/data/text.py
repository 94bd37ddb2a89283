"""A text that every Python brings along, as a data set: each sample a passage, its labels what follows each letter."""

from __future__ import annotations

import torch

CONTEXT = 96
_TESTED = 10  # every tenth passage


def topics() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Python's help, `pydoc_data.topics`: passages and labels to train on and to test on, and the number of letters."""
    from pydoc_data.topics import topics as found

    text = "\n".join(found[name] for name in sorted(found))
    letters = sorted(set(text))
    place = {letter: number for number, letter in enumerate(letters)}
    codes = torch.tensor([place[letter] for letter in text], dtype=torch.uint8)
    count = (len(codes) - 1) // CONTEXT
    passages = codes[: count * CONTEXT].view(count, CONTEXT)
    labels = codes[1 : count * CONTEXT + 1].view(count, CONTEXT).long()
    tested = torch.arange(count) % _TESTED == _TESTED - 1
    return passages[~tested], labels[~tested], passages[tested], labels[tested], len(letters)
