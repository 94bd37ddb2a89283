"""What is said of two programs' values: tables of operators, pairs of values, and what is found on the way."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from .arrays import matched
from .calls import Args
from .interval import INF, Arithmetic, Array, Value
from .pointwise import RISING, VALLEYS

Unit = tuple[str, int]
Keep = tuple[Array, ...]

_PLAIN = """relu_ hardtanh clamp clamp_min clamp_max threshold threshold_ leaky_relu elu nodedrop.soft_clamped_relu neg
    abs maximum minimum rsqrt log softplus mish selu dropout feature_dropout native_dropout _to_copy"""
_FORMS = "where.self masked_fill.Scalar fill.Tensor fill.Scalar pow.Tensor_Scalar to.dtype to.dtype_layout to.device"
_PAIRWISE = "add sub mul div rsub add_ mul_"
_CURVED = "gelu silu leaky_relu elu selu celu mish tanh sigmoid softplus prelu"
EACH = frozenset(
    [f"{name}.default" for name in (*RISING, *VALLEYS, *_PLAIN.split(), "zeros_like", "ones_like", "full_like")]
    + [f"{name}.{form}" for name in _PAIRWISE.split() for form in ("Tensor", "Scalar")]
    + _FORMS.split()
)
# Where an activation is 0: for inputs up to this number.
ZERO: dict[str, Callable[[Args], float | None]] = {
    **dict.fromkeys(["relu.default", "relu_.default", "relu6.default"], lambda a: 0.0),
    "nodedrop.soft_clamped_relu.default": lambda a: 0.0,
    "hardtanh.default": lambda a: 0.0 if a["min_val"] == 0 else None,
    **dict.fromkeys(["clamp.default", "clamp_min.default"], lambda a: 0.0 if a["min"] == 0 else None),
    **dict.fromkeys(["threshold.default", "threshold_.default"], lambda a: a["threshold"] if a["value"] == 0 else None),
    **dict.fromkeys(["hardswish.default", "hardsigmoid.default"], lambda a: -3.0),
}
CURVES = frozenset(f"{name}.default" for name in _CURVED.split())
PRODUCTS = {"linear.default": ("input", "weight", "bias"), "addmm.default": ("mat1", "mat2", "self"),
            "matmul.default": ("self", "other", ""), "mm.default": ("self", "mat2", ""),
            "bmm.default": ("self", "mat2", "")}  # fmt: skip
ALONG = re.compile(r"(native_)?layer_norm|(_fused_)?rms_norm|_?(safe_)?softmax|mean|sum|amax|amin|pad|constant_pad_nd")
STATISTICS = ("running_mean", "running_var")
RECURRENT = ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
REDUCTIONS = ("mean", "sum", "amax", "amin")
PER_CHANNEL = re.compile(r"prelu|\w*batch_norm\w*|instance_norm|\w*_pool\dd\w*|upsample_\w+")
KINDS = ("dead", "constant", "unread")
INNER = -1  # in place of axis 1, in hints of what groups of a convolution share: there group · size + index is counted


class NotProved(Exception):
    """The relation cannot be carried further; says where and what is missing."""


@dataclass(frozen=True)
class Leaf:
    """A tensor of both modules, related as soon as its use says which elements must be the same."""

    name: str
    before: Array
    after: Array
    stated: bool = False


@dataclass(frozen=True)
class Pair:
    """A value before the cut, and the indices along each axis that are left after it."""

    value: Value
    keep: Keep = ()
    leaf: Leaf | None = None
    u: float = 2.0**-53


Pairs = dict[str, Pair]


@dataclass
class Findings:
    """By tensor, axis and index: the largest value that can enter a unit's activation, the size of what enters, which
    of KINDS a unit was where it was read, and how far rounding can take its own sum. `gone` are units that layers no
    longer make, each under all its names, `folded` biases of layers that read something constant that is gone.
    `leaders` has, for elements that meet others, one that all of them are known by; what meets those of `open` is not
    all known. `kept` are the indices that a tensor has wherever it is read or overwritten, None where it is not the
    first module's at such indices, and `written` are the tensors that some pass overwrites."""

    bounds: dict[Unit, dict[int, float]] = field(default_factory=dict)
    sizes: dict[Unit, dict[int, float]] = field(default_factory=dict)
    kinds: dict[Unit, dict[int, set[tuple[bool, bool, bool]]]] = field(default_factory=dict)
    gone: set[frozenset[tuple[Unit, int]]] = field(default_factory=set)
    folded: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    leaders: dict[tuple[Unit, int], tuple[Unit, int]] = field(default_factory=dict)
    open: set[Unit] = field(default_factory=set)
    margins: dict[Unit, dict[int, float]] = field(default_factory=dict)
    kept: dict[str, list[Keep | None]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def note(self, units: Iterable[tuple[Unit, int]], true: tuple[bool, bool, bool]) -> None:
        """What units were at a place where they were read."""
        for unit, at in units:
            self.kinds.setdefault(unit, {}).setdefault(at, set()).add(true)

    def note_kept(self, pair: Pair, keep: Keep | None) -> None:
        """The indices of a tensor where it is read."""
        if pair.leaf is not None:
            self.kept.setdefault(pair.leaf.name, []).append(keep)

    def tie(self, elements: Iterable[tuple[Unit, int]]) -> None:
        """These go together, each with all that it went with before."""
        found = [self.leader(element) or element for element in elements]
        self.leaders |= dict.fromkeys(found, found[0]) if found else {}

    def loose(self) -> set[tuple[Unit, int] | None]:
        """Leaders of what may go together with more than is known."""
        return {None} | {self.leader(element) for element in self.leaders if element[0] in self.open}

    def coarse(self) -> set[tuple[Unit, int] | None]:
        """Leaders of what may go apart: several elements of one tensor are among it."""
        times = Counter((self.leader(element), element[0]) for element in self.leaders)
        return {leader for (leader, _), number in times.items() if number > 1}

    def leader(self, element: tuple[Unit, int]) -> tuple[Unit, int] | None:
        """The one that all that goes with an element is known by; None if it was seen nowhere."""
        above = self.leaders.get(element)
        while above is not None and above != element:
            element, above = above, self.leaders[above]
        return above


@dataclass(frozen=True)
class Assumptions:
    """What is taken for granted: the box of each input, how much larger batches may be, the lowest precision used.

    Where `known` is given, it is all that is known of the tensors, and the second program is the first one without
    the elements that hints take away, whatever the numbers left are.
    """

    boxes: Mapping[str, tuple[Array, Array]]
    growth: float
    lowest: torch.dtype | None = None
    known: Mapping[str, Value] | None = None


def arithmetic(dtype: torch.dtype, lowest: torch.dtype | None) -> Arithmetic:
    """Of values of a type, computed in that type or the lowest one."""
    kinds = [torch.finfo(d) for d in (dtype, lowest) if d is not None and d.is_floating_point]
    if not kinds:
        return Arithmetic(0.0, 0.0, INF)
    return Arithmetic(max(k.eps for k in kinds) / 2, max(k.tiny for k in kinds), min(k.max for k in kinds))


def mask_of(keep: Keep, shape: tuple[int, ...]) -> Array:
    """1 at the elements that are left."""
    mask = np.zeros(shape, int)
    mask[np.ix_(*keep)] = 1
    return mask


def axes_left(mask: Array) -> Keep:
    """Indices along each axis at which something is left."""
    others = [tuple(e for e in range(mask.ndim) if e != d) for d in range(mask.ndim)]
    return tuple(np.flatnonzero(mask.any(axes)) for axes in others)


def matched_units(before: Array, after: Array, bias: Leaf | None) -> Array:
    """Units found by their weights and bias, or if that fails (a constant was added to it) by their weights alone."""
    if bias is not None and bias.before.shape == before.shape[:1] and bias.after.shape == after.shape[:1]:
        rows = [np.column_stack([w.reshape(len(w), -1), b]) for w, b in ((before, bias.before), (after, bias.after))]
        found = matched(*rows)
        if len(found):
            return found
    return matched(before, after)
