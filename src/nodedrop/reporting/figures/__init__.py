"""The paper's figures from our records, with its own points beside them. Needs matplotlib only when one is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from .. import paper
from ..groups import Setting, compared, lam_of, name_of, points, series, settings, standard
from ..records import Record
from ..tables import DATA, longest, networks, rank, variant
from . import runs, sweeps
from .style import Picture, styled, write

__all__ = ["Picture", "for_topic", "styled", "write"]


def for_topic(records: Sequence[Record], topic: str) -> list[Picture]:
    """The figures of a page, from what is there."""
    make = {"mnist": _mnist, "cifar10": _cifar, "cifar100": _cifar}
    if topic == "text":
        return []  # a table of a few rows says it all
    if topic in make:
        return list(make[topic](records, topic))
    return list(_variants(records, "activation" if topic == "activations" else "form", topic))


def _mnist(records: Sequence[Record], topic: str) -> Iterator[Picture]:
    for setting, suffix in _named(standard(records, topic)):
        found = [one for one in setting.series if one.points]
        if not found:
            continue
        words = setting.title.replace("`", "")
        yield Picture(
            f"mnist-lambda{suffix}",
            f"Test error and parameters left over λ by starting size; dashed, the dense ReLU network ({words}).",
            partial(sweeps.mnist_lambda, found),
        )
        if len(found) > 1:
            yield Picture(
                f"mnist-sizes{suffix}",
                "Parameters at the end over parameters at the start, a line for each λ through the means, "
                f"a tick for each run; dashed, nothing removed ({words}).",
                partial(sweeps.mnist_sizes, found),
            )
        yield Picture(
            f"mnist-tradeoff{suffix}",
            f"Test error over how many times fewer the parameters are; the dotted line is the paper's best ({words}).",
            partial(sweeps.tradeoff, found, [()] * len(found)),
        )
        # The largest network whose removal is the strongest without loss: the run that shows most.
        largest = found[-1]
        chosen = largest.best(0.1) or largest.points[len(largest.points) // 2]
        yield _widths(chosen.records[0], f"mnist-widths{suffix}")


def _cifar(records: Sequence[Record], topic: str) -> Iterator[Picture]:
    by_profile: dict[str, list[Record]] = {}
    for setting in settings(r for r in standard(records, topic) if r.finished):
        held = by_profile.setdefault(setting.profile, [])
        kinds = {(r.recipe.network, r.recipe.batch_norm) for r in held}
        held += [r for r in setting.records if (r.recipe.network, r.recipe.batch_norm) not in kinds]
    for number, (profile, held) in enumerate(by_profile.items()):
        suffix = f"-{profile or number}"
        found = [one for one in series(held) if one.points or one.baseline]
        kept = {(one.network, one.batch_norm): one for one in found}
        for network in ("vgg16", "densenet40"):
            norms = [b for b in (False, True) if paper.rows(topic, network, batch_norm=b)]
            panel_rows = [
                (name_of(network, batch_norm=b), kept.get((network, b)), paper.rows(topic, network, batch_norm=b))
                for b in norms
            ]
            if any(one is not None and one.points for _, one, _ in panel_rows):
                command = f"nodedrop reproduce {topic}-{'lambda' if network == 'vgg16' and len(norms) > 1 else 'table'}"
                yield Picture(
                    f"{topic}-{network}-lambda{suffix}",
                    f"{DATA[topic]}: test error and share of the parameters left over λ, here and in the paper; "
                    "dashed, the dense network here, finely dotted, the paper's.",
                    partial(sweeps.cifar_lambda, panel_rows, command),
                )
        if swept := [one for one in found if one.points]:
            theirs = [paper.rows(topic, one.network, batch_norm=one.batch_norm) for one in swept]
            yield Picture(
                f"{topic}-tradeoff{suffix}",
                f"{DATA[topic]}: test error over how many times fewer the parameters are; the paper's points hollow.",
                partial(sweeps.tradeoff, swept, theirs),
            )
    if topic == "cifar10" and (record := longest(records)) is not None:
        name = name_of(record.recipe.network, batch_norm=record.recipe.batch_norm)
        yield Picture(
            "cifar10-convergence",
            f"{name}, λ = {lam_of(record.recipe.lam)}: test accuracy and parameters left over epochs of one run.",
            partial(runs.convergence, record),
        )
        yield _widths(record, "cifar10-widths")


def _variants(records: Sequence[Record], by: str, topic: str) -> Iterator[Picture]:
    number = 0
    for setting in settings(r for r in compared(records, by) if r.finished):
        for members in networks(setting.records):
            rows: dict[float, dict[str, list[Record]]] = {}
            for point in sorted(points(members), key=lambda p: rank(p, by)):
                rows.setdefault(point.lam, {})[variant(point, by)] = list(point.records)
            plain = rows.pop(0.0, {})
            if not rows:
                continue
            number += 1
            recipe = members[0].recipe
            yield Picture(
                topic if number == 1 else f"{topic}-{number}",
                f"{DATA.get(recipe.data, recipe.data)}, {name_of(recipe.network, batch_norm=recipe.batch_norm)}: "
                "test error and share of the parameters left over epochs, a row for each λ, a line for each run.",
                partial(runs.variants, list(rows.items()), plain),
            )


def _widths(record: Record, name: str) -> Picture:
    network = name_of(record.recipe.network, batch_norm=record.recipe.batch_norm)
    caption = f"{network}, λ = {lam_of(record.recipe.lam)}, seed {record.recipe.seed}: units of each layer over epochs."
    return Picture(name, caption, partial(runs.widths, record))


def _named(records: Sequence[Record]) -> Iterator[tuple[Setting, str]]:
    """Settings, each with an ending for file names."""
    seen: dict[str, int] = {}
    for setting in settings(record for record in records if record.finished):
        seen[setting.profile] = seen.get(setting.profile, 0) + 1
        number = seen[setting.profile]
        yield setting, f"-{setting.profile or 'own'}" + (f"-{number}" if number > 1 else "")
