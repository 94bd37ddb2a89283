"""The pages and what they are about; what is missing on them, and the command that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..experiments.data import TEXT
from ..experiments.reproduce import jobs_of
from .groups import compared, standard
from .records import Record
from .tables import longest

SHOWN = 4  # names of runs, before the rest is counted


@dataclass(frozen=True)
class Topic:
    """A page: its title, its subject in a sentence or two, the reproductions that feed it."""

    title: str
    about: str
    reproductions: tuple[str, ...]


TOPICS: dict[str, Topic] = {
    "mnist": Topic(
        "MNIST: choosing λ, and starting sizes",
        "Five networks of one shape and different widths, over λ: the paper's two MNIST figures. It finds that error "
        "hardly depends on λ over orders of magnitude, and that different starts end near the same size.",
        ("mnist-lambda", "mnist-sizes", "mnist-long", "exactness"),
    ),
    "cifar10": Topic(
        "CIFAR-10: VGG16 and DenseNet-40",
        "The paper's first table and its figures over λ and over epochs, with and without batch norm.",
        ("cifar10-lambda", "cifar10-table", "convergence"),
    ),
    "text": Topic(
        "A transformer on a text",
        "Beyond the paper: a transformer of three blocks with ReLU learns to continue the text of Python's help pages "
        "(`pydoc_data.topics`), letter by letter. Its feed-forward layers read a layer norm, which bounds what comes "
        "in; units go where that bound proves them dead, for every text and in both modes.",
        ("text",),
    ),
    "cifar100": Topic("CIFAR-100: VGG16 and DenseNet-40", "The paper's second table.", ("cifar100-table",)),
    "activations": Topic(
        "Activations: why the clamp is soft",
        "The condition needs outputs in [0, 1] and a flat zero region. ClampedReLU has both, but a second flat region, "
        "where the paper found units stuck; SoftClampedReLU has a slope there. ReLU is unbounded, so eq. 1 holds for "
        "the first layer alone.",
        ("activations",),
    ),
    "penalties": Topic(
        "Penalties: the forms the paper rejects",
        "The paper's penalty of a unit (eq. 4), that of its authors' code, and the forms its text rejects.",
        ("penalties",),
    ),
}
REPRODUCTIONS = {name: topic for topic, held in TOPICS.items() for name in held.reproductions}


def check(name: str) -> None:
    """Refuse a name that is neither a page nor a reproduction."""
    known = list(dict.fromkeys((*TOPICS, *REPRODUCTIONS)))
    if name not in known:
        raise InputError(f"there is nothing called '{name}' to report; there are {', '.join(known)}")


def present(records: Sequence[Record], topic: str) -> list[Record]:
    """The records that a page rests on."""
    if topic in ("activations", "penalties"):
        return compared(records, "activation" if topic == "activations" else "form")
    found = standard(records, TEXT if topic == "text" else topic)
    extra = longest(records) if topic == "cifar10" else None
    return found if extra is None or extra in found else [*found, extra]


def rest(records: Sequence[Record]) -> list[Record]:
    """The records that no page rests on."""
    used = {id(record) for topic in TOPICS for record in present(records, topic)}
    return [record for record in records if id(record) not in used]


def missing(records: Sequence[Record], topic: str) -> list[str]:
    """A sentence for each reproduction of which runs of the profile `short` have no record."""
    held = {record.recipe for record in records if record.finished}
    sentences, told = [], set[str]()
    for name in TOPICS[topic].reproductions:
        jobs = jobs_of(name, "short", [0], Path())
        lacking = [job.name for job in jobs if job.recipe not in held and job.name not in told]
        told.update(lacking)
        if lacking:
            listed = ", ".join(lacking[:SHOWN]) + (f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else "")
            sentences.append(
                f"`nodedrop reproduce {name} --missing`, profile `short`, has {len(lacking)} of {len(jobs)} runs "
                f"to make: {listed}."
            )
    return sentences
