"""Batches from memory, shifted and mirrored as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from ...errors import InputError


class Batches:
    """Images as floats in [0, 1], or passages of a text as numbers, with their labels, batch by batch.

    With a `generator` every epoch has a random order of its own; without, images come as they lie. `shift` moves each
    image by up to that many pixels along both axes, zeros coming in, and `mirror` turns half of them left to right. An
    epoch draws all it needs from the generator when it begins: from the same state, `epoch(start=k)` has the same
    batches from the k-th on. `began` is that state, to be stored with k by whoever wants to go on later.

    >>> images, labels = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1) * 85, torch.arange(4)
    >>> [(x.flatten(), y) for x, y in Batches(images, labels, 3)]
    [(tensor([0.0000, 0.3333, 0.6667]), tensor([0, 1, 2])), (tensor([1.]), tensor([3]))]
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        *,
        generator: Generator | None = None,
        shift: int = 0,
        mirror: bool = False,
        drop_last: bool = False,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        text = images.dim() == 2 and labels.shape == images.shape and not (shift or mirror)
        if images.dtype != torch.uint8 or not (text or (images.dim() == 4 and labels.shape == images.shape[:1])):
            raise InputError(
                "images must be bytes of four axes with as many labels, or of two with a label for each place, "
                f"got {images.dtype} of shape {tuple(images.shape)} and labels of shape {tuple(labels.shape)}"
            )
        if batch_size < 1 or (drop_last and batch_size > len(images)):
            raise InputError(f"no batch of {batch_size} can be taken from {len(images)} images")
        if shift < 0 or ((shift or mirror) and generator is None):
            raise InputError(f"shift ({shift}) and mirror ({mirror}) need a generator, and a shift is not negative")
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.generator, self.shift, self.mirror = generator, shift, mirror
        self.drop_last, self.dtype, self.channels_last = drop_last, dtype, channels_last
        self.began: Tensor | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return (len(self.images) + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch()

    def epoch(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of the next epoch, from the one numbered `start` on."""
        if not 0 <= start <= len(self):
            raise InputError(f"an epoch has {len(self)} batches and cannot start at {start}")
        count, source = len(self.images), self.generator
        order, moves, turned = torch.arange(count), None, None
        if source is not None:
            self.began = source.get_state()
            order = torch.randperm(count, generator=source)
            if self.shift:
                moves = torch.randint(2 * self.shift + 1, (2, count), generator=source)
            if self.mirror:
                turned = torch.randint(2, (count,), generator=source) > 0
        return self._walk(start, order, moves, turned)

    def _walk(
        self, start: int, order: Tensor, moves: Tensor | None, turned: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(start, len(self)):
            these = slice(number * self.batch_size, (number + 1) * self.batch_size)
            images = self.images.index_select(0, order[these])
            if moves is not None:
                images = _shifted(images, moves[:, these], self.shift)
            if turned is not None:
                images = torch.where(turned[these, None, None, None], images.flip(3), images)
            yield self._scaled(images), self.labels.index_select(0, order[these])

    def _scaled(self, images: Tensor) -> Tensor:
        """Bytes over 255; divided, since the product with a rounded 1/255 may exceed 1. Letters stay numbers."""
        if images.dim() == 2:
            return images.long()
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        images = images.contiguous(memory_format=layout)
        wide = self.dtype if self.dtype == torch.float64 else torch.float32
        return images.to(wide).div_(255).to(self.dtype)


def _shifted(images: Tensor, moves: Tensor, reach: int) -> Tensor:
    """Cut each image out of its frame of zeros at its own place: one of all windows, which are but a view."""
    height, width = images.shape[2:]
    windows = pad(images, (reach,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images)), :, moves[0], moves[1]]
