"""Batches: every image once, shifted and mirrored as drawn, the same again from the same state."""

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from nodedrop.errors import InputError
from nodedrop.experiments.data import Batches

COUNT = 23
IMAGES = torch.randint(1, 256, (COUNT, 3, 8, 6), dtype=torch.uint8, generator=Generator().manual_seed(0))
LABELS = torch.arange(COUNT)


def batches(seed: int | None = 0, **options: Any) -> Batches:
    generator = None if seed is None else Generator().manual_seed(seed)
    return Batches(IMAGES, LABELS, 5, generator=generator, **options)


def placed(image: Tensor, dy: int, dx: int) -> Tensor:
    """An image moved by whole pixels into zeros, one pixel after the other."""
    out = torch.zeros_like(image)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            if 0 <= y - dy < image.shape[1] and 0 <= x - dx < image.shape[2]:
                out[:, y, x] = image[:, y - dy, x - dx]
    return out


def test_in_order_without_a_generator() -> None:
    found = list(batches(None))
    assert len(found) == len(batches(None)) == 5
    assert torch.equal(torch.cat([x for x, _ in found]), IMAGES / 255)
    assert torch.equal(torch.cat([y for _, y in found]), LABELS)


def test_every_image_comes_once_with_its_own_label() -> None:
    source = batches()
    orders = []
    for _ in range(2):
        images, labels = (torch.cat(parts) for parts in zip(*source, strict=True))
        assert sorted(labels.tolist()) == list(range(COUNT))
        assert torch.equal(images, IMAGES[labels] / 255)
        orders.append(labels.tolist())
    assert orders[0] != orders[1]


def test_the_last_batch_can_be_left_out() -> None:
    assert [len(y) for _, y in batches(drop_last=True)] == [5] * 4
    assert [len(y) for _, y in batches()] == [5] * 4 + [3]
    assert len(batches(drop_last=True)) == 4


@pytest.mark.parametrize(("shift", "mirror"), [(2, False), (0, True), (2, True), (6, True)])
def test_each_image_is_a_shift_of_its_own_or_of_its_mirror_image(shift: int, mirror: bool) -> None:
    seen = set()
    source = batches(shift=shift, mirror=mirror)
    for x, y in source:
        for image, label in zip((x * 255).round().to(torch.uint8), y, strict=True):
            own = IMAGES[label]
            places = [
                (turned, dy, dx)
                for turned in ((False, True) if mirror else (False,))
                for dy in range(-shift, shift + 1)
                for dx in range(-shift, shift + 1)
                if torch.equal(image, placed(own.flip(2) if turned else own, dy, dx))
            ]
            assert places
            seen.update(places)
    assert len(seen) > 1


def test_all_shifts_are_drawn_alike() -> None:
    images = torch.zeros(4000, 1, 3, 3, dtype=torch.uint8)
    images[:, :, 1, 1] = 255
    source = Batches(images, torch.zeros(4000), 500, generator=Generator().manual_seed(0), shift=1)
    counts = torch.cat([x for x, _ in source]).sum((0, 1))
    assert counts.sum() == 4000
    assert ((counts - 4000 / 9).abs() < 80).all()


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.zeros(4000, 1, 1, 2, dtype=torch.uint8)
    images[..., 0] = 255
    source = Batches(images, torch.zeros(4000), 500, generator=Generator().manual_seed(0), mirror=True)
    assert abs(torch.cat([x for x, _ in source])[..., 1].sum() - 2000) < 130


@pytest.mark.parametrize("start", [0, 2, 4, 5])
def test_an_epoch_goes_on_in_the_middle(start: int) -> None:
    options = {"shift": 2, "mirror": True}
    whole = batches(**options)
    list(whole)
    second = list(whole)
    assert whole.began is not None
    third = list(whole)

    again = batches(7, **options)
    assert again.generator is not None
    again.generator.set_state(whole.began)
    for (x, y), (expected, labels) in zip(again.epoch(start), third[start:], strict=True):
        assert torch.equal(x, expected)
        assert torch.equal(y, labels)
    assert not torch.equal(torch.cat([y for _, y in second]), torch.cat([y for _, y in third]))
    assert torch.equal(again.generator.get_state(), whole.generator.get_state())  # type: ignore[union-attr]


def test_an_epoch_draws_when_it_is_asked_for() -> None:
    source = batches()
    first = source.epoch()
    second = source.epoch()
    assert torch.equal(torch.cat([y for _, y in first]), torch.cat([y for _, y in batches()]))
    assert len(list(second)) == 5


def test_nothing_else_random_is_touched() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(batches(shift=4, mirror=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_lie_in_the_unit_interval(dtype: torch.dtype) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    ((x, _),) = Batches(images, torch.zeros(1), 1, dtype=dtype)
    assert x.dtype == dtype
    assert (x.min(), x.max()) == (0, 1)
    assert torch.equal(x.flatten(), (torch.arange(256, dtype=torch.float64) / 255).to(dtype))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_layout_in_memory(channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for options in ({}, {"shift": 2}, {"mirror": True}, {"shift": 2, "mirror": True}):
        plain = [x for x, _ in batches(**options)]
        for x, expected in zip(batches(channels_last=channels_last, **options), plain, strict=True):
            assert x[0].is_contiguous(memory_format=layout)
            assert torch.equal(x[0], expected)


def test_the_images_stay_as_they_are() -> None:
    before = IMAGES.clone()
    list(batches(shift=4, mirror=True))
    list(batches(None))
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((IMAGES.float(), LABELS, 5), {}, "images must be bytes of four axes with as many labels, or of two"),
        ((IMAGES, LABELS[1:], 5), {}, "images must be bytes of four axes"),
        ((IMAGES, LABELS, 0), {}, "no batch of 0 can be taken from 23 images"),
        ((IMAGES, LABELS, 24), {"drop_last": True}, "no batch of 24 can be taken from 23 images"),
        ((IMAGES, LABELS, 5), {"mirror": True}, "shift (0) and mirror (True) need a generator"),
        ((IMAGES, LABELS, 5), {"shift": 4}, "shift (4) and mirror (False) need a generator"),
        ((IMAGES, LABELS, 5), {"shift": -1, "generator": Generator()}, "shift (-1)"),
    ],
)
def test_a_mistake_gets_a_sentence(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Batches(*arguments, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("start", [-1, 6])
def test_an_epoch_starts_within_itself(start: int) -> None:
    with pytest.raises(InputError, match="an epoch has 5 batches and cannot start at"):
        batches().epoch(start)
