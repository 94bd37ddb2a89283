"""Cases of normalisation, by running statistics, by the batch, and over one sample."""

from __future__ import annotations

from typing import Any

import torch
from tests.bounds.cases import case
from tests.oracle import INF, Tape

FULL = (torch.float64, torch.float32)


def scale_and_shift(t: Tape, units: int) -> tuple[Any, Any]:
    """Weights of both signs, one of them zero."""
    weight = t.normal(units, scale=2.0)
    weight[0] = 0
    return t.parameter(weight), t.parameter(t.normal(units))


def fixed(op: str, eps: float) -> tuple[Any, ...]:
    """The arguments that follow the statistics, not in training."""
    if "no_training" in op:
        return 0.1, eps
    return (False, 0.1, eps, False) if op == "aten.batch_norm.default" else (False, 0.1, eps)


@case("aten._native_batch_norm_legit_no_training.default", "aten.batch_norm.default")
def running_statistics(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (3.0, 3.0), (-1e3, 1e3), (-INF, INF), (0.0, INF)):
        mean, var = t.parameter(t.normal(3, scale=2.0)), t.parameter(t.normal(3).abs() * 0.1)
        t(op, t.input(4, 3, 2, 2, lo=lo, hi=hi), *scale_and_shift(t, 3), mean, var, *fixed(op, 1e-5))
        t(op, t.input(4, 3, lo=lo, hi=hi), None, None, mean, var, *fixed(op, 1e-3))


@case("aten._native_batch_norm_legit_no_training.default", "aten.native_batch_norm.default", "aten.batch_norm.default")
def statistics_that_cancel(t: Tape, op: str) -> None:
    """x·(w/σ) and μ·(w/σ) are large and nearly equal."""
    mean, var = t.parameter(torch.full((3,), 100.0)), t.parameter(torch.full((3,), 1e-4))
    t(op, t.input(40, 3, lo=99.0, hi=100.0), *scale_and_shift(t, 3), mean, var, *fixed(op, 1e-5))


@case("aten._native_batch_norm_legit_no_training.default", "aten.batch_norm.default", dtypes=(torch.float32,))
def gains_that_are_hardly_there(t: Tape, op: str) -> None:
    """w/σ lies below the normal numbers, where it is rounded to multiples of the least one, and meets large values."""
    least = torch.tensor([1.0, 2.0, 3.0]) * 2.0**-149
    mean, var = t.parameter(torch.zeros(3)), t.parameter(torch.tensor([0.36, 0.5, 3.0]))
    for bias in (None, t.parameter(torch.tensor([-2.5e-15, 1e-15, 0.0]))):
        t(op, t.input(4, 3, lo=0.0, hi=1e30), t.parameter(least), bias, mean, var, *fixed(op, 1e-5))


BATCH = ("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.default",
         "aten._native_batch_norm_legit.no_stats", "aten.native_batch_norm.default", "aten.batch_norm.default")


def batch_norm(t: Tape, op: str, x: Any, units: int, eps: float = 1e-5) -> Any:
    """Normalise by the batch itself."""
    weight, bias = scale_and_shift(t, units)
    statistics = () if "no_stats" in op else (t.parameter(torch.zeros(units)), t.parameter(torch.ones(units)))
    last = (False,) if op == "aten.batch_norm.default" else ()
    return t(op, x, weight, bias, *statistics, True, 0.1, eps, *last)


@case(*BATCH, batch_limit=6.0, samples=10)
def batch_statistics(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (-INF, INF), (0.0, 1e-3)):
        batch_norm(t, op, t.input(6, 4, lo=lo, hi=hi), 4)
        batch_norm(t, op, t.input(2, 3, 2, 2, lo=lo, hi=hi), 3)


@case(*BATCH, samples=10)
def batches_of_any_size(t: Tape, op: str) -> None:
    batch_norm(t, op, t.input(6, 4, lo=-1.0, hi=2.0), 4)
    batch_norm(t, op, t.input(6, 4, lo=0.0, hi=1e-3), 4, eps=0.1)


@case(*BATCH, batch_limit=4.0, samples=10, dtypes=FULL)
def batch_far_from_zero(t: Tape, op: str) -> None:
    """A large mean beside a small spread: kernels that compute x·α + β lose what the mean has in common."""
    for far in (1e3, 1e5, 1e7):
        batch_norm(t, op, t.input(4, 3, lo=far, hi=far * (1 + 1e-6)), 3)


@case(*BATCH, batch_limit=2.0, samples=10, dtypes=FULL)
def rows_folded_into_the_batch(t: Tape, op: str) -> None:
    """[batch, steps, units] read as [batch·steps, units]: the statistics are over more values than the batch has."""
    x = t("aten.view.default", t.input(2, 8, 3, lo=-5.0, hi=5.0), [16, 3])
    batch_norm(t, op, x, 3)


@case("aten.layer_norm.default", "aten.native_layer_norm.default")
def rows(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (-1e3, 1e3), (0.0, 0.0), (0.0, 1e-3)):
        x = t.input(4, 6, lo=lo, hi=hi)
        for weights in ((None, None), scale_and_shift(t, 6), (t.parameter(t.normal(6)), None)):
            normal = t(op, x, [6], *weights, 1e-5)
            normal = t.item(normal, 0) if "native" in op else normal
            t("aten.linear.default", normal, t.parameter(t.normal(5, 6)), t.parameter(t.normal(5)))


@case("aten.layer_norm.default", "aten.native_layer_norm.default")
def rows_of_several_axes(t: Tape, op: str) -> None:
    t(op, t.input(2, 3, 4, lo=-2.0), [3, 4], t.parameter(t.normal(3, 4)), t.parameter(t.normal(3, 4)), 1e-5)
    t(op, t.input(5, 1, lo=-2.0), [1], t.parameter(t.normal(1)), t.parameter(t.normal(1)), 1e-5)
    t(op, t.input(5, 2, lo=-2.0), [2], None, None, 1e-5)


@case("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default",
      "aten._fused_rms_norm.default")
def rows_without_a_domain(t: Tape, op: str) -> None:
    x = t.input(4, 4, lo=-INF, hi=INF)
    t(op, x, [4], t.parameter(t.normal(4)), *(() if "rms" in op else (None,)), 1e-5)


@case("aten.layer_norm.default", "aten.native_layer_norm.default", samples=20)
def rows_far_from_zero(t: Tape, op: str) -> None:
    """A large mean beside a small spread, with a domain and without."""
    for far in (1e2, 1e3, 1e4):
        step = far * 4 * float(torch.finfo(t.dtype).eps)
        for width in (2, 4, 33):
            t(op, t.input(64, width, lo=far, hi=far + step), [width], None, None, 1e-5)
    x = t("aten.mul.Tensor", t.input(64, 4, lo=far, hi=far + step), t.input(64, 1, lo=-INF, hi=INF))
    t(op, x, [4], None, None, 1e-5)


@case("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default", "aten.group_norm.default",
      "aten.instance_norm.default", "aten._native_batch_norm_legit_functional.default",
      "aten._native_batch_norm_legit_no_training.default", dtypes=FULL, batch_limit=4.0)
def weights_from_the_input(t: Tape, op: str) -> None:
    """Conditional normalisation: scale and shift are values, any number of their intervals."""
    x, w, b = t.input(4, 3, 2), t.input(3, lo=-3.0, hi=2.0), t.input(3, lo=-1.0, hi=4.0)
    zero, one = t.parameter(torch.zeros(3)), t.parameter(torch.ones(3))
    if "layer" in op or "rms" in op:
        x = t.input(4, 3)
        t(op, x, [3], w, *(() if "rms" in op else (b,)), 1e-5)
    elif "group" in op:
        t(op, x, 1, w, b)
    elif "instance" in op:
        t(op, x, w, b, None, None, True, 0.1, 1e-5, False)
    else:
        t(op, x, w, b, zero, one, *(() if "no_training" in op else (True,)), 0.1, 1e-5)


@case("aten.rms_norm.default", "aten._fused_rms_norm.default")
def root_mean_square(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (5.0, 5.5), (-1e-3, 1e-3)):
        for eps in (None, 1e-6):
            x = t.input(4, 6, lo=lo, hi=hi)
            normal = t(op, x, [6], t.parameter(t.normal(6)), eps)
            normal = t.item(normal, 0) if "fused" in op else normal
            t("aten.linear.default", normal, t.parameter(t.normal(5, 6)), t.parameter(t.normal(5)))


@case("aten.group_norm.default", "aten.native_group_norm.default")
def groups_of_units(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (-1e3, 1e3), (-INF, INF), (7.0, 7.5)):
        for groups, width in ((2, 3), (4, 1), (1, 2)):
            x, (w, b) = t.input(3, 4, width, width, lo=lo, hi=hi), scale_and_shift(t, 4)
            sizes = (3, 4, width * width)
            t(op, x, groups, w, b, 1e-5) if "native" not in op else t(op, x, w, b, *sizes, groups, 1e-5)


@case("aten.group_norm.default", "aten.native_group_norm.default", samples=20, dtypes=FULL)
def groups_far_from_zero(t: Tape, op: str) -> None:
    for far in (1e2, 1e4, 1e6):
        step = far * 4 * float(torch.finfo(t.dtype).eps)
        x = t.input(16, 4, 2, 1, lo=far, hi=far + step)
        t(op, x, 2, None, None, 1e-5) if "native" not in op else t(op, x, None, None, 16, 4, 2, 2, 1e-5)


@case("aten.instance_norm.default")
def instances(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 2.0), (-INF, INF)):
        x, (w, b) = t.input(3, 4, 3, lo=lo, hi=hi), scale_and_shift(t, 4)
        mean, var = t.parameter(t.normal(4)), t.parameter(t.normal(4).abs())
        t(op, x, w, b, None, None, True, 0.1, 1e-5, False)
        t(op, x, w, b, mean, var, False, 0.1, 1e-5, False)
        t(op, x, None, None, None, None, True, 0.1, 1e-5, False)


@case("aten.instance_norm.default", samples=20, dtypes=FULL)
def instances_far_from_zero(t: Tape, op: str) -> None:
    for far in (1e2, 1e4, 1e6):
        step = far * 4 * float(torch.finfo(t.dtype).eps)
        t(op, t.input(16, 4, 3, lo=far, hi=far + step), None, None, None, None, True, 0.1, 1e-5, False)
