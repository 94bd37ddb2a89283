"""What the records say beside the paper, in sentences whose every number is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from statistics import mean

from ..experiments.data import TEXT
from ..experiments.recipes import EXPERIMENTS, Recipe
from . import paper
from .groups import Point, Series, Setting, Spread, compared, lam_of, name_of, once, points, settings, standard
from .records import Record
from .tables import DATA, NO_LOSS, longest, networks, rank, variant

IMAGES = 50_000  # for training, of both CIFAR sets
LARGE = 1e-5  # the λ that the paper recommends to start from


def for_topic(records: Sequence[Record], topic: str) -> list[str]:
    """Sentences for a page; the first is the one to quote."""
    done = [record for record in records if record.finished]
    return list(_TOPICS[topic](done, topic))


def _mnist(records: Sequence[Record], topic: str) -> Iterable[str]:
    found = settings(standard(records, topic))
    for setting in sorted(found, key=_promise):
        yield from _best_of_sizes(setting)
    for setting in found:
        yield from _sizes(setting)
        yield from _range(setting)
    yield from _cuts([*standard(records, topic), *once(records, topic)])
    yield from _collapses(standard(records, topic))


def _promise(setting: Setting) -> tuple[bool, float]:
    """Recipes as they stand before changed ones, and of these the strongest removal first."""
    bests = [best.removed.mean for one in setting.series if (best := one.best(NO_LOSS["mnist"])) is not None]
    return bool(setting.overrides), -max(bests, default=0.0)


def _best_of_sizes(setting: Setting) -> Iterable[str]:
    """The strongest removal without loss, from any size."""
    allowed = NO_LOSS["mnist"]
    bests = [(one, best) for one in setting.series if (best := one.best(allowed)) is not None]
    if not bests:
        return
    one, best = max(bests, key=lambda pair: pair[1].removed.mean)
    theirs, mine = paper.mnist_removed(), best.removed.mean
    verdict = "more than" if mine > theirs else "less than" if mine < theirs else "as much as"
    yield (
        f"{_capital(setting.title)}: with a test error within {allowed:g} points of the baseline's, the most that went "
        f"is {mine:.2f} % of the parameters, {verdict} the paper's best, {theirs} %. {_from(one, best)}"
    )


def _from(one: Series, point: Point) -> str:
    assert one.baseline is not None
    return (
        f"From {one.title} ({one.parameters:,} parameters), λ = {lam_of(point.lam)} leaves "
        f"{point.parameters.mean:,.0f} ({point.factor.mean:.1f} times fewer) at an error of {_percent(point.error)}; "
        f"the baseline's is {_percent(one.baseline.error)}."
    )


def _sizes(setting: Setting) -> Iterable[str]:
    """How near each other different starts end."""
    found = [one for one in setting.series if one.points]
    ratios: dict[float, float] = {}
    for lam in sorted({point.lam for one in found for point in one.points}):
        ends = [p.parameters.mean for one in found for p in one.points if p.lam == lam and not p.collapsed]
        if len(ends) == len(found) > 1:
            ratios[lam] = max(ends) / min(ends)
    if not ratios:
        return
    starts = [one.parameters for one in found]
    listed = ", ".join(f"{ratio:.2f} at λ = {lam_of(lam)}" for lam, ratio in ratios.items())
    yield (
        f"{_capital(setting.title)}: starts from {found[0].title} to {found[-1].title} differ by a factor of "
        f"{max(starts) / min(starts):.1f} in parameters; their ends (means over seeds) by {listed}."
    )
    large = {lam: ratio for lam, ratio in ratios.items() if lam >= LARGE * 0.99}
    if large:
        lam, least = min(large.items(), key=lambda pair: pair[1])
        within = [lam_of(lam) for lam, ratio in large.items() if ratio <= 2]
        yield (
            f"The paper says that different starts end near the same size. For λ ≥ {lam_of(LARGE)}, ends lie within a "
            f"factor of two at {', '.join(within) if within else 'no λ'}; nearest at λ = {lam_of(lam)}, {least:.2f}."
        )


def _range(setting: Setting) -> Iterable[str]:
    """From which λ on error rises."""
    first = []
    for one in setting.series:
        if one.baseline is not None:
            limit = one.baseline.error.mean + NO_LOSS["mnist"] + 1e-9
            worse = [point.lam for point in one.points if point.error.mean > limit]
            first += [f"{lam_of(min(worse))} ({one.title})"] if worse else []
    if first:
        yield (
            f"{_capital(setting.title)}: the smallest λ with an error more than {NO_LOSS['mnist']:g} points above the "
            f"baseline's is {', '.join(first)}; the paper noticed a loss above {lam_of(paper.LOSS_ABOVE)}."
        )


def _cifar(records: Sequence[Record], topic: str) -> Iterable[str]:
    chosen = standard(records, topic)
    for setting in settings(chosen):
        for one in setting.series:
            yield from _best_beside(one, setting, topic)
            yield from _learning(one, setting)
    if topic == "cifar10":
        yield from _convergence(records)
    yield from _cuts(chosen)
    yield from _collapses(chosen)
    gone = [(key, row) for key, rows in _printed(topic) for row in rows if row.units == 0]
    for name, row in gone:
        yield f"In the paper, {name} loses every unit at λ = {lam_of(row.lam)} (error {row.test_error:.2f} %)."


def _best_beside(one: Series, setting: Setting, topic: str) -> Iterable[str]:
    allowed = NO_LOSS[topic]
    theirs = paper.best(paper.rows(topic, one.network, batch_norm=one.batch_norm), allowed)
    name = f"{DATA[topic]}, {one.title}, {setting.title}"
    if one.baseline is None:
        if one.points:
            yield f"{name}: there is no baseline here, so nothing can be said about loss."
        return
    best = one.best(allowed)
    if best is None:
        if one.points:
            yield f"{name}: no λ here stays within {allowed:g} point of the baseline's {_percent(one.baseline.error)}."
        return
    text = (
        f"{name}: within {allowed:g} point of the baseline's error ({_percent(one.baseline.error)}), "
        f"{best.removed.mean:.2f} % of the parameters go at λ = {lam_of(best.lam)} "
        f"({best.factor.mean:.2f} times fewer, error {_percent(best.error)})"
    )
    if theirs is not None and theirs.factor is not None:
        text += (
            f"; the paper's figures by the same rule are {theirs.removed:.2f} % at λ = {lam_of(theirs.lam)} "
            f"({theirs.factor:.2f} times, error {theirs.test_error:.2f} %)"
        )
    yield text + "."


def _learning(one: Series, setting: Setting) -> Iterable[str]:
    """How far the dense network is from knowing its training images, and for how many steps units were pressed."""
    if one.baseline is None or not one.points:
        return
    seen = [error for record in one.baseline.records if (error := record.epochs[-1].train_error) is not None]
    if not seen:
        return
    text = (
        f"{one.title}, {setting.title}: the dense network ends with an error of {mean(seen):.2f} % on training images, "
        f"as the last epoch met them, and of {_percent(one.baseline.error)} on test images; "
        f"the penalty acted for {_pressed(one.points[0].recipe):,} steps"
    )
    if setting.profile == "short" and setting.experiment in EXPERIMENTS:
        text += f", where the profile `paper` has {_pressed(EXPERIMENTS[setting.experiment].paper):,}"
    yield text + "."


def _pressed(recipe: Recipe) -> int:
    """Steps with a penalty. Without a number of its own, a run takes all images of its set."""
    return round((recipe.epochs - recipe.quiet - recipe.rest) * ceil((recipe.images or IMAGES) / recipe.batch))


def _convergence(records: Sequence[Record]) -> Iterable[str]:
    """When accuracy is there, and what the size does after that."""
    record = longest(records)
    if record is None:
        return
    rows = record.epochs
    final = min(row.test_error for row in rows)
    stable = next(row for row in rows if row.test_error <= final + NO_LOSS["cifar10"])
    wanted = paper.content()["convergence_figure"]
    yield (
        f"Convergence (λ = {lam_of(record.recipe.lam)}, {rows[-1].epoch} epochs; the paper's run has "
        f"{wanted['epochs']:,}): the test error first comes within {NO_LOSS['cifar10']:g} point of its lowest, "
        f"{final:.2f} %, in epoch {stable.epoch}, with {stable.parameters:,} parameters; {rows[-1].parameters:,} are "
        f"left at the end. The paper's accuracy is stable after fewer than {paper.STABLE_AFTER} epochs, and its size "
        f"falls for some {paper.SHRINKS_FOR} more."
    )


def _comparison(records: Sequence[Record], topic: str) -> Iterable[str]:
    by = "activation" if topic == "activations" else "form"
    groups = [members for setting in settings(compared(records, by)) for members in networks(setting.records)]
    for members in groups:
        recipe = members[0].recipe
        where = f"{name_of(recipe.network, batch_norm=recipe.batch_norm)}, " if len(groups) > 1 else ""
        found = sorted(points(members), key=lambda point: rank(point, by))
        for lam in sorted({point.lam for point in found}):
            for words in _ranking([point for point in found if point.lam == lam], lam, by):
                yield where + words[0].lower() + words[1:] if where else words
    yield from _cuts(compared(records, by))
    yield from _collapses(compared(records, by))


def _ranking(found: Sequence[Point], lam: float, by: str) -> Iterable[str]:
    """Activations one by one; penalties against the paper's, which comes first."""
    start = f"λ = {lam_of(lam)}" if lam else "Without penalty"
    if by == "activation":
        parts = []
        for point in found:
            words = f"{variant(point, by)} {_percent(point.error)}"
            words += f", {point.removed.mean:.1f} % of the parameters gone" if lam else ""
            if all(record.stuck is not None for record in point.records):
                start_mean = point.over(lambda record: record.stuck_at_start or 0).mean
                end_mean = point.over(lambda record: record.stuck or 0).mean
                words += f", {start_mean:g} units stuck at the start and {end_mean:g} at the end"
            parts.append(words)
        yield f"{start}, test error at the end: {'; '.join(parts)}."
        return
    first = found[0]
    if not lam or first.recipe.form != "paper":
        return
    yield (
        f"{start}: the paper's penalty removes {first.removed.mean:.1f} % of the parameters at an error of "
        f"{_percent(first.error)}."
    )
    for words, chosen in (
        ("fewer go with", [p for p in found[1:] if p.removed.mean < first.removed.mean]),
        ("as many or more go with", [p for p in found[1:] if p.removed.mean >= first.removed.mean]),
    ):
        listed = [f"`{variant(p, by)}` ({p.removed.mean:.1f} %, error {_percent(p.error)})" for p in chosen]
        if listed:
            yield f"{start}: {words} {', '.join(listed)}."


def _cuts(records: Sequence[Record]) -> Iterable[str]:
    """Whether the last cut changed anything, and for batch norm what the cuts changed in eval mode."""
    cut = [record for point in points(records) if point.lam > 0 for record in point.records]
    for normed in (False, True):
        chosen = [record for record in cut if record.recipe.batch_norm == normed]
        if not chosen:
            continue
        runs = f"{len(chosen)} runs {'with' if normed else 'without'} batch norm"
        last = [record for record in chosen if record.cut_last > 0]
        text = f"In {len(last) or 'none'} of the {runs} units were left for a cut after the last epoch"
        if last:
            changed = sum(record.predictions_changed for record in last)
            text += (
                f" ({sum(record.cut_last for record in last)} in all). Of the test set's predictions it changed "
                f"{changed or 'none'}, of its logits none by more than {max(r.logit_change for r in last):.1e} of the "
                f"largest"
            )
        yield text + "."
        shown, silent = (max(of(record) for record in chosen) for of in (_shown, lambda record: record.eval_change))
        modes = f"in training mode, and by at most {silent:.1e} in eval mode" if normed else "in either mode"
        yield f"No cut of the {runs} changed outputs for an example by more than {shown:.1e} of the largest {modes}."


def _shown(record: Record) -> float:
    """By how much any cut changed the outputs for the example that it was checked with."""
    return record.cut_change or 0.0


def _collapses(records: Sequence[Record]) -> Iterable[str]:
    lost = [point for point in points(records) if any(record.collapsed for record in point.records)]
    if not lost:
        if any(not record.dense for record in records):
            yield "No run lost a whole layer."
        return
    for point in lost:
        bad = [record for record in point.records if record.collapsed]
        layers = list(dict.fromkeys(layer for record in bad for layer in record.collapsed))
        name = name_of(point.recipe.network, batch_norm=point.recipe.batch_norm)
        kind = "" if point.recipe.form == "paper" else f", penalty `{variant(point, 'form')}`"
        yield (
            f"{name} at λ = {lam_of(point.lam)}{kind} lost {len(layers)} whole layer{'s' if len(layers) > 1 else ''} "
            f"({', '.join(layers[:3])}{', …' if len(layers) > 3 else ''}) in {len(bad)} of {point.n} runs; "
            f"error {_percent(point.error)}."
        )


def _printed(topic: str) -> list[tuple[str, tuple[paper.Row, ...]]]:
    kinds = [(network, norm) for network in ("vgg16", "densenet40") for norm in (False, True)]
    return [
        (name_of(network, batch_norm=norm), paper.rows(topic, network, batch_norm=norm))
        for network, norm in kinds
    ]


def _percent(spread: Spread) -> str:
    std = spread.std
    return f"{spread.mean:.2f} ± {std:.2f} %" if std else f"{spread.mean:.2f} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(records: Sequence[Record], topic: str) -> Iterable[str]:
    """The most units that went at a perplexity within one per cent of the baseline's."""
    found = standard(records, TEXT)
    for setting in sorted(settings(found), key=lambda setting: bool(setting.overrides)):  # recipes as they stand first
        for one in setting.series:
            if one.baseline is None or not one.points:
                continue
            base = one.baseline.perplexity.mean
            best = max((p for p in one.points if p.perplexity.mean <= 1.01 * base), key=lambda p: p.units_removed.mean,
                       default=None)  # fmt: skip
            if best is None:
                yield f"{_capital(setting.title)}: no λ kept the perplexity within 1 % of the baseline's, {base:.3f}."
                continue
            yield (
                f"{_capital(setting.title)}: with λ = {lam_of(best.lam)}, {best.units_removed.mean:.1f} % of the "
                f"feed-forward units went at a perplexity of {best.perplexity.mean:.3f}, where the baseline has "
                f"{base:.3f}. At the best epoch of each it is {best.lowest.mean:.3f} and "
                f"{one.baseline.lowest.mean:.3f}."
            )
    yield from _cuts(found)
    yield from _collapses(found)


_TOPICS: dict[str, Callable[[Sequence[Record], str], Iterable[str]]] = {
    "mnist": _mnist,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "activations": _comparison,
    "penalties": _comparison,
    "text": _text,
}
