"""Cases of operators that move, join, pad, resize or pick elements."""

from __future__ import annotations

from typing import Any

import torch
from tests.bounds.cases import case
from tests.oracle import INF, Tape

# Arguments after the value, for a value of shape [2, 4, 6, 6].
MOVES: dict[str, list[tuple[Any, ...]]] = {
    "aten.view.default": [([2, 4, 36],), ([8, 6, 6],), ([2, 2, 2, 6, 6],), ([-1],), ([2, 144, 1, 1],)],
    "aten.reshape.default": [([2, 24, 6],), ([6, 8, 6],)],
    "aten._unsafe_view.default": [([2, 144],)],
    "aten.view_copy.default": [([2, 144],)],
    "aten.flatten.using_ints": [(1,), (2, 3), (0, 1)],
    "aten.unflatten.int": [(1, [2, 2]), (-1, [3, 2])],
    "aten.unsqueeze.default": [(0,), (-1,), (2,)],
    "aten.clone.default": [()],
    "aten.contiguous.default": [()],
    "aten.detach.default": [()],
    "aten.detach_.default": [()],
    "aten.alias.default": [()],
    "aten.lift_fresh.default": [()],
    "aten.lift_fresh_copy.default": [()],
    "aten.positive.default": [()],
    "aten.conj.default": [()],
    "aten.resolve_conj.default": [()],
    "aten.permute.default": [([0, 2, 3, 1],), ([-1, 0, 1, 2],)],
    "aten.transpose.int": [(1, 2), (-1, 0)],
    "aten.swapaxes.default": [(1, -1)],
    "aten.swapdims.default": [(0, 1)],
    "aten.mT.default": [()],
    "aten.numpy_T.default": [()],
    "aten.movedim.int": [(1, -1), (-1, 0)],
    "aten.movedim.intlist": [([0, 1], [1, 0])],
    "aten.repeat.default": [([1, 2, 1, 1],), ([2, 1, 1, 3, 1],)],
    "aten.tile.default": [([2, 1, 1],), ([1, 2, 1, 1],)],
    "aten.slice.Tensor": [(1, 1, 3), (1, -2), (2, 0, 9223372036854775807, 2), (0,), (3, -3, -1)],
    "aten.select.int": [(1, 2), (1, -1), (0, 0)],
    "aten.narrow.default": [(1, 1, 2), (2, 0, 3), (-1, 1, 2)],
    "aten.split.Tensor": [(3, 1), (2,), (4, -1)],
    "aten.split_with_sizes.default": [([1, 3], 1)],
    "aten.split.sizes": [([1, 3], 1), ([2, 4], -1)],
    "aten.chunk.default": [(2, 1), (3, 1), (4, 2)],
    "aten.unsafe_chunk.default": [(2, 1)],
    "aten.unbind.int": [(1,), ()],
    "aten.flip.default": [([1],), ([0, -1],)],
    "aten.roll.default": [([1], [1]), ([3],), ([1, -1], [1, 2])],
    "aten.diagonal.default": [(), (1, 2, 3), (0, 0, 1)],
    "aten.channel_shuffle.default": [(2,)],
    "aten.native_channel_shuffle.default": [(2,)],
    "aten.pixel_shuffle.default": [(2,)],
    "aten.pixel_unshuffle.default": [(2,), (3,)],
    "aten.repeat_interleave.self_int": [(2,), (3, 1)],
    "aten.unfold.default": [(2, 3, 2)],
    "aten.im2col.default": [([2, 2], [1, 1], [1, 1], [2, 2])],
    "aten.triu.default": [(), (1,)],
    "aten.tril.default": [(-1,)],
}
PER_UNIT = (
    torch.tensor([-4.0, 0.0, 1.0, 0.5]).reshape(4, 1, 1), torch.tensor([-3.0, 0.0, 2.0, INF]).reshape(4, 1, 1)
)


def written_out(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A box of its own for every element, so that a bound in the wrong place shows."""
    lo = torch.arange(float(torch.Size(shape).numel())).reshape(shape) % 61
    return lo, lo + 0.5


@case(*MOVES, climbs=0)
def moves(t: Tape, op: str) -> None:
    shape = (2, 4, 6, 6)
    for args in MOVES[op]:
        for lo, hi in (PER_UNIT, written_out(shape), (1.0, 2.0)):
            t(op, t.input(*shape, lo=lo, hi=hi), *args)
    t(op, t.parameter(t.normal(*shape)), *MOVES[op][0])


@case("aten.t.default")
def transposes(t: Tape, op: str) -> None:
    t(op, t.input(2, 4, lo=written_out((2, 4))[0], hi=70.0))
    t(op, t.input(4, lo=torch.tensor([1.0, 2.0, 3.0, 4.0]), hi=5.0))


@case("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")
def squeezes(t: Tape, op: str) -> None:
    for lo, hi in ((-1.0, 1.0), (torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1), 4.0)):
        x = t.input(2, 1, 3, 1, lo=lo, hi=hi)
        for args in {"aten.squeeze.dim": [(1,), (0,), (-1,)], "aten.squeeze.dims": [([1, 3],)]}.get(op, [()]):
            t(op, x, *args)


@case("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default")
def expansions(t: Tape, op: str) -> None:
    x = t.input(3, 1, lo=torch.tensor([[1.0], [2.0], [3.0]]), hi=4.0)
    t(op, x, t.input(2, 3, 5) if "_as" in op else [2, 3, 5])


@case("aten.reshape_as.default", "aten.view_as.default")
def reshaped_like_another(t: Tape, op: str) -> None:
    t(op, t.input(2, 6, lo=written_out((2, 6))[0], hi=70.0), t.input(3, 4))


@case("aten.view.default", "aten.permute.default", "aten.transpose.int")
def rows_that_move(t: Tape, op: str) -> None:
    """What is known of a row stays true only where the row stays a row."""
    weights = t.parameter(t.normal(4)), t.parameter(t.normal(4))
    normal = t("aten.layer_norm.default", t.input(4, 4, 4), [4], *weights, 1e-5)
    turned = {"aten.view.default": ([16, 4],), "aten.permute.default": ([0, 2, 1],), "aten.transpose.int": (1, 2)}[op]
    others = t("aten.transpose.int", normal, 0, 1), t("aten.permute.default", normal, [2, 1, 0])
    for rows in (t(op, normal, *turned), *others):
        t("aten.linear.default", rows, t.parameter(torch.eye(4)))
        t("aten.linear.default", rows, t.parameter(torch.ones(2, 4)))


@case("aten.cat.default", "aten.stack.default", "aten.concat.default")
def joins(t: Tape, op: str) -> None:
    shape = (2, 3, 2)
    per_unit = (torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1), torch.tensor([1.5, 2.5, 3.5]).reshape(3, 1))
    values = [t.input(*shape, lo=-1.0, hi=0.0), t.input(*shape, lo=per_unit[0], hi=per_unit[1])]
    values.append(t.parameter(t.normal(*shape)))
    for axis in (0, 1, -1):
        t(op, values, axis)
    t(op, [values[2], values[2]], 1)
    t(op, values)


@case("aten.cat.default")
def join_with_nothing(t: Tape, op: str) -> None:
    t(op, [t.parameter(torch.zeros(0)), t.input(2, 3, lo=1.0, hi=2.0)], 1)


CASTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "aten._to_copy.default": ((), {"dtype": torch.bfloat16}),
    "aten.to.dtype": ((torch.float16,), {}),
    "aten.to.dtype_layout": ((), {"dtype": torch.float32}),
    "aten.to.device": (("cpu", torch.bfloat16), {}),
    "aten._cast_Float.default": ((), {}),
}


@case(*CASTS, "aten.to.other", "aten.type_as.default")
def casts(t: Tape, op: str) -> None:
    x = t.input(4, 3, lo=-1.0, hi=3.3)
    if op in CASTS:
        args, kwargs = CASTS[op]
        t(op, x, *args, **kwargs)
        t(op, t.parameter(torch.arange(-3, 4)), *args, **kwargs)
    else:
        t(op, x, t.parameter(torch.tensor(1)))
        t(op, t.parameter(torch.tensor([16777217])), x)


@case("aten._to_copy.default")
def casts_to_integers(t: Tape, op: str) -> None:
    for dtype in (torch.int64, torch.int32, torch.bool):
        t(op, t.input(4, 3, lo=-2.5, hi=3.3), dtype=dtype)
    t(op, t.input(4, 3, lo=-2.5, hi=30.0), dtype=torch.uint8)


@case("aten._to_copy.default", dtypes=(torch.bfloat16, torch.float32))
def casts_to_a_smaller_range(t: Tape, op: str) -> None:
    """bfloat16 rounds more than float16 but reaches further."""
    t(op, t.input(4, 3, lo=1e5, hi=1e6), dtype=torch.float16)
    t(op, t.input(4, 3, lo=1e-9, hi=1e-8), dtype=torch.float16)


@case("aten.constant_pad_nd.default", "aten.pad.default")
def pads(t: Tape, op: str) -> None:
    for lo, hi in ((1.0, 2.0), PER_UNIT, written_out((2, 4, 3, 3))):
        x = t.input(2, 4, 3, 3, lo=lo, hi=hi)
        for amounts in ([1, 1], [0, 1, 2, 0], [0, 0, 0, 0, 1, 2], [-1, 1], [1, 0, -1, 0]):
            for fill in (0.0, -2.5, 0.1):
                t(op, x, amounts, fill) if "constant" in op else t(op, x, amounts, "constant", fill)
    t(op, x, [1, 1])


@case("aten.pad.default")
def pads_with_its_own_values(t: Tape, op: str) -> None:
    for mode in ("reflect", "replicate", "circular"):
        for lo, hi in (PER_UNIT, written_out((2, 4, 3, 3))):
            t(op, t.input(2, 4, 3, 3, lo=lo, hi=hi), [1, 1, 2, 0], mode)


@case("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.replication_pad1d.default",
      "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def border_copies(t: Tape, op: str) -> None:
    n = int(next(c for c in op if c.isdigit()))
    shape = (2, 4, *[3] * n)
    t(op, t.input(*shape, lo=written_out(shape)[0], hi=70.0), [1, 2] * n)


@case("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.replication_pad1d.default",
      "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def border_copies_of_one_sample(t: Tape, op: str) -> None:
    n = int(next(c for c in op if c.isdigit()))
    shape = (4, *[3] * n)
    t(op, t.input(*shape, lo=written_out(shape)[0], hi=70.0), [1, 2] * n)


@case("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec",
      "aten.upsample_nearest2d.default", "aten.upsample_nearest1d.default", "aten._upsample_nearest_exact2d.vec",
      "aten.upsample_bilinear2d.vec", "aten.upsample_linear1d.vec", "aten.upsample_trilinear3d.vec",
      "aten.upsample_bilinear2d.default")
def resizes(t: Tape, op: str) -> None:
    n = int(next(c for c in op if c.isdigit()))
    shape = (2, 3, *[3] * n)
    linear = "linear" in op
    for lo, hi in (written_out(shape), (-3.0, -1.0), (0.0, 0.0)):
        for size in (5, 2, 7):
            for align in (False, True) if linear else (None,):
                middle = () if align is None else (align,)
                end = () if op.endswith("default") else (None,)
                t(op, t.input(*shape, lo=lo, hi=hi), [size] * n, *middle, *end)


@case("aten.select_scatter.default")
def writes_one_row(t: Tape, op: str) -> None:
    base = t.input(2, 4, 3, lo=torch.tensor([0.0, 1.0, 2.0]), hi=torch.tensor([0.5, 1.5, 2.5]))
    for axis, index in ((1, 0), (1, -1), (1, -3), (-1, 2), (0, 1)):
        sizes = [n for d, n in enumerate((2, 4, 3)) if d != axis % 3]
        t(op, base, t.input(*sizes, lo=5.0, hi=6.0), axis, index)
    t(op, t("aten.zeros.default", [2, 4, 3], dtype=t.dtype), t.input(2, 3), 1, 2)


@case("aten.slice_scatter.default")
def writes_some_rows(t: Tape, op: str) -> None:
    base = t.input(2, 4, 3, lo=torch.tensor([0.0, 1.0, 2.0]), hi=torch.tensor([0.5, 1.5, 2.5]))
    t(op, base, t.input(2, 2, 3, lo=5.0, hi=6.0), 1, 1, 3)
    t(op, base, t.input(2, 2, 3, lo=torch.tensor([[7.0], [8.0]]), hi=9.0), 1, -2)
    t(op, base, t.input(2, 2, 3, lo=5.0, hi=6.0), 1, 0, 9223372036854775807, 2)
    t(op, t("aten.zeros.default", [2, 4, 3], dtype=t.dtype), t.input(2, 4, 2), -1, 1)


@case("aten.index.Tensor", "aten.gather.default", "aten.index_select.default", "aten.take.default",
      "aten.masked_select.default", "aten.take_along_dim.default")
def picks(t: Tape, op: str) -> None:
    x = t.input(4, 3, lo=written_out((4, 3))[0], hi=70.0)
    index = torch.tensor([[0, 2, 1], [2, 2, 0]])
    where = {
        "index": [([t.tensor_input(index)],), ([None, t.tensor_input(index)],)],
        "index_select": [(0, t.tensor_input(index[0]))],
        "take": [(t.tensor_input(index),)],
        "masked_select": [(t.tensor_input(torch.tensor([[True, False, True]])),)],
        "gather": [(0, t.tensor_input(index))],
        "take_along_dim": [(t.tensor_input(index), 0)],
    }
    for args in where[op.split(".")[1]]:
        t(op, x, *args)
