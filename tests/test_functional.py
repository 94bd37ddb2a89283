"""The NodeDrop condition and the penalties, against plain loops and against the layers themselves."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nodedrop.errors import InputError
from nodedrop.functional import (
    NORM_PENALTY_FORMS,
    PENALTY_FORMS,
    condition,
    condition_bn,
    penalty,
    penalty_bn,
    penalty_gn,
    penalty_ln,
    soft_clamped_relu,
    upper_bound,
)
from nodedrop.functional.spared import pressed

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Linear(5, 6),
    "conv1d": lambda: nn.Conv1d(4, 6, 3, padding=1),
    "conv2d": lambda: nn.Conv2d(4, 6, 3, stride=2, padding=2),
    "conv2d unpadded": lambda: nn.Conv2d(4, 6, (2, 3)),
    "conv2d grouped": lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "conv2d depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4, dilation=2, padding=1),
    "conv3d": lambda: nn.Conv3d(2, 3, 2, padding=1),
    "conv3d grouped": lambda: nn.Conv3d(4, 6, (1, 2, 2), groups=2),
    "transposed 1d": lambda: nn.ConvTranspose1d(4, 3, 3, stride=2),
    "transposed 2d": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1),
    "transposed 2d grouped": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
    "transposed 3d grouped": lambda: nn.ConvTranspose3d(4, 4, 2, groups=2, stride=2),
}

REFERENCE: dict[str, Callable[[list[float], float, float], float]] = {
    "paper": lambda w, b, C: sum(max(x, 0.0) for x in w) + abs(b + C),
    "one-sided": lambda w, b, C: sum(max(x, 0.0) for x in w) + max(b + C, 0.0),
    "distance": lambda w, b, C: abs(sum(max(x, 0.0) for x in w) + b),
    "unbounded": lambda w, b, C: sum(max(x, 0.0) for x in w) + b,
    "shifted": lambda w, b, C: abs(sum(max(x, 0.0) for x in w) + b + C),
    "l2": lambda w, b, C: sum(x * x for x in w) + b * b,
    "l2-shifted": lambda w, b, C: sum(x * x for x in w) + (b + C) ** 2,
}


class Case:
    """A layer with random weights in float64, and its units spelled out as lists of (input, weight)."""

    def __init__(self, name: str) -> None:
        self.layer = LAYERS[name]().double()
        for parameter in self.layer.parameters():
            nn.init.normal_(parameter)
        self.weight: Tensor = self.layer.weight.detach()
        self.bias: Tensor = self.layer.bias.detach()
        self.groups: int = getattr(self.layer, "groups", 1)
        self.transposed: bool = getattr(self.layer, "transposed", False)
        self.rank = self.weight.dim() - 2
        self.inputs: int = self.weight.shape[0] if self.transposed else self.weight.shape[1] * self.groups
        self.options = {"groups": self.groups, "transposed": self.transposed}

    def units(self) -> Iterator[tuple[list[tuple[int, float]], float]]:
        for unit in range(len(self.bias)):
            group = unit // (len(self.bias) // self.groups)
            width = self.inputs // self.groups
            terms = []
            for j in range(width):
                source = group * width + j
                if self.transposed:
                    kernel = self.weight[source, unit % (len(self.bias) // self.groups)]
                else:
                    kernel = self.weight[unit, j]
                terms += [(source, w) for w in kernel.flatten().tolist()]
            yield terms, float(self.bias[unit])

    def draw_inputs(self, lo: Tensor, hi: Tensor) -> Tensor:
        """Corner and inner points of the box, one row per sample."""
        shape = (64, self.inputs, *[5] * self.rank)
        box = [1, self.inputs, *[1] * self.rank]
        share = torch.rand(shape, dtype=torch.float64)
        share[:48] = share[:48].round()
        share[0], share[1] = 0, 1
        return lo.reshape(box) + share * (hi - lo).reshape(box)

    def responses(self, x: Tensor) -> Tensor:
        """Pre-activations, [unit, everything else]."""
        with torch.no_grad():
            return self.layer(x).transpose(0, 1).flatten(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=list(LAYERS))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def random_box(inputs: int, low: float = -1.0) -> tuple[Tensor, Tensor]:
    lo = low + torch.rand(inputs, dtype=torch.float64)
    return lo, lo + torch.rand(inputs, dtype=torch.float64)


@pytest.mark.parametrize("low", [None, -1.5, -0.5, 0.5])
@pytest.mark.parametrize("padded", [True, False])
def test_bound_is_the_sum_of_the_larger_products(case: Case, low: float | None, padded: bool) -> None:
    box = () if low is None else random_box(case.inputs, low)
    lo, hi = box or (torch.zeros(case.inputs), torch.ones(case.inputs))
    if case.transposed or (padded and case.rank):
        lo, hi = lo.clamp(max=0), hi.clamp(min=0)
    strong, weak = [], []
    for terms, b in case.units():
        ends = [(w * float(lo[i]), w * float(hi[i])) for i, w in terms]
        strong.append(sum(map(max, ends)) + b)
        weak.append(sum(max(abs(low), abs(high)) for low, high in ends) + b)
    for expected, form in ((strong, False), (weak, True)):
        bound = upper_bound(case.weight, case.bias, *box, weak=form, padded=padded, **case.options)
        torch.testing.assert_close(bound, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("low", [-1.5, -0.5, 0.5])
@pytest.mark.parametrize("weak", [False, True])
def test_no_input_of_the_box_exceeds_the_bound(case: Case, low: float, weak: bool) -> None:
    for _ in range(10):
        lo, hi = random_box(case.inputs, low)
        bound = upper_bound(case.weight, case.bias, lo, hi, weak=weak, **case.options)
        reached = case.responses(case.draw_inputs(lo, hi)).amax(dim=1)
        assert bool((reached <= bound + 1e-12).all())


def test_certified_units_are_zero_on_corners_and_inside(case: Case) -> None:
    lo, hi = random_box(case.inputs, 0.2)
    margin = upper_bound(case.weight, torch.zeros_like(case.bias), lo, hi, **case.options)
    even = torch.arange(len(case.bias)) % 2 == 0
    with torch.no_grad():
        case.layer.bias.copy_(torch.where(even, -margin - 1e-9, -margin + 1e-3))
    dead = condition(case.weight, case.layer.bias, lo, hi, **case.options)
    assert dead.dtype == torch.bool
    assert dead.tolist() == even.tolist()
    y = soft_clamped_relu(case.responses(case.draw_inputs(lo, hi)))
    assert bool((y[dead] == 0).all())


eighths = st.integers(-16, 16).map(lambda n: n / 8)


@given(st.data())
def test_condition_holds_exactly_if_no_corner_of_the_box_fires(data: st.DataObject) -> None:
    inputs = data.draw(st.integers(1, 6))
    row = st.lists(eighths, min_size=inputs, max_size=inputs)
    w, ends = data.draw(row), [sorted(pair) for pair in zip(data.draw(row), data.draw(row), strict=True)]
    b = data.draw(st.integers(-30, 8).map(lambda n: n / 8))
    highest = max(sum(map(float.__mul__, w, corner)) + b for corner in itertools.product(*ends))
    lo, hi = [end[0] for end in ends], [end[1] for end in ends]
    weight, bias = torch.tensor([w]), torch.tensor([b])
    assert upper_bound(weight, bias, lo, hi).item() == highest
    assert condition(weight, bias, lo, hi).item() == (highest <= 0)
    if condition(weight, bias, lo, hi, weak=True).item():
        assert condition(weight, bias, lo, hi).item()


@pytest.mark.parametrize("low", [-1.5, -0.5, 0.5])
def test_dense_units_that_are_not_certified_fire_at_a_corner(low: float) -> None:
    weight, bias = torch.randn(200, 7, dtype=torch.float64), torch.randn(200, dtype=torch.float64) - 2
    lo, hi = random_box(7, low)
    corner = torch.where(weight > 0, hi, lo)
    fires = (weight * corner).sum(dim=1) + bias > 1e-12
    alive = ~condition(weight, bias, lo, hi)
    assert fires.tolist() == alive.tolist()
    assert 0 < int(alive.sum()) < 200


def test_unpadded_convolution_reaches_its_bound() -> None:
    case = Case("conv2d unpadded")
    lo, hi = random_box(case.inputs, 0.5)
    bound = upper_bound(case.weight, case.bias, lo, hi, padded=False)
    box = [1, case.inputs, 1, 1]
    patches = torch.where(case.weight > 0, hi.reshape(box), lo.reshape(box))
    torch.testing.assert_close(case.responses(patches).diagonal(), bound)


def test_bound_keeps_the_dtype_and_sums_in_double() -> None:
    weight = torch.tensor([[2048.0] + [0.5] * 8])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert upper_bound(weight.to(dtype)).dtype == dtype
    assert condition(weight.half(), torch.tensor([-2050.0]).half()).tolist() == [False]
    assert condition(weight.half(), torch.tensor([-2052.0]).half()).tolist() == [True]


def test_zero_weights_shut_out_unbounded_inputs() -> None:
    box = ([-math.inf, 0.0], [math.inf, 1.0])
    weight = torch.tensor([[0.0, -1.0]], requires_grad=True)
    bound = upper_bound(weight, None, *box)
    assert bound.tolist() == [0.0]
    (grad,) = torch.autograd.grad(bound.sum(), weight)
    assert grad.tolist() == [[0.0, 0.0]]
    assert upper_bound(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), None, *box).tolist() == [math.inf, math.inf]


def test_nan_and_infinite_weights_are_never_certified() -> None:
    weight = torch.tensor([[math.nan, -1.0], [math.inf, -math.inf], [-1.0, -1.0]])
    assert condition(weight, torch.tensor([-1.0, -1.0, math.nan])).tolist() == [False, False, False]


def test_bound_is_differentiable(case: Case) -> None:
    lo, hi = random_box(case.inputs)
    weight, bias = case.weight.clone().requires_grad_(), case.bias.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w, b: upper_bound(w, b, lo, hi, **case.options), (weight, bias))


@pytest.mark.parametrize(("batch", "side"), [(2, 1), (5, 1), (2, 4)])
def test_batch_norm_condition_covers_every_batch_and_is_tight(batch: int, side: int) -> None:
    m = batch * side * side  # positions count as values
    norm = nn.BatchNorm2d(400, eps=1e-30).double()
    nn.init.normal_(norm.weight)
    nn.init.uniform_(norm.bias, -2 * math.sqrt(m), 1)
    dead = condition_bn(norm.weight, norm.bias, m)
    weak = condition_bn(norm.weight, norm.bias, m, weak=True)
    assert 0 < int(weak.sum()) <= int(dead.sum()) < 400
    assert not bool((weak & ~dead).any())
    # One value far from all the others, on the side of γ, lies √(m−1) deviations out.
    lone = torch.zeros(batch, 400, side, side, dtype=torch.float64)
    lone[0, :, 0, 0] = norm.weight.detach().sign()
    with torch.no_grad():
        assert ((norm(lone).amax(dim=(0, 2, 3)) > 1e-9) == ~dead).all()
        for size in range(2, batch + 1):
            y = torch.relu(norm(torch.randn_like(lone[:size])))
            assert bool((y[:, dead] == 0).all())


def test_table_of_forms_is_complete_and_documented() -> None:
    assert set(PENALTY_FORMS) == set(REFERENCE)
    assert set(NORM_PENALTY_FORMS) == {"paper", "one-sided"}
    forms = [*PENALTY_FORMS.values(), *NORM_PENALTY_FORMS.values()]
    assert all(form.formula and form.reason for form in forms)


@pytest.mark.parametrize("form", PENALTY_FORMS)
@pytest.mark.parametrize("C", [1.0, 0.25, 10.0])
def test_penalty_is_the_sum_over_units(case: Case, form: str, C: float) -> None:
    expected = sum(REFERENCE[form]([w for _, w in terms], b, C) for terms, b in case.units())
    computed = penalty(case.weight, case.bias, C=C, form=form, **case.options)
    assert computed.shape == ()
    assert computed.item() == pytest.approx(expected)
    without = sum(REFERENCE[form]([w for _, w in terms], 0.0, C) for terms, _ in case.units())
    assert penalty(case.weight, C=C, form=form, **case.options).item() == pytest.approx(without)


@pytest.mark.parametrize("form", PENALTY_FORMS)
def test_penalty_weighs_each_input_by_its_largest_value(case: Case, form: str) -> None:
    hi = torch.rand(case.inputs, dtype=torch.float64) * 3
    expected = sum(REFERENCE[form]([w * float(hi[i]) for i, w in terms], b, 1.0) for terms, b in case.units())
    computed = penalty(case.weight, case.bias, form=form, hi=hi, **case.options)
    assert computed.item() == pytest.approx(expected)
    if form == "unbounded":
        for lo in (torch.zeros(case.inputs), -2 * hi):
            bound = upper_bound(case.weight, case.bias, lo, hi, **case.options)
            computed = penalty(case.weight, case.bias, form=form, lo=lo, hi=hi, **case.options)
            assert computed.item() == pytest.approx(float(bound.sum()))


@pytest.mark.parametrize("form", PENALTY_FORMS)
def test_penalty_gradients(case: Case, form: str) -> None:
    weight, bias = case.weight.clone().requires_grad_(), case.bias.clone().requires_grad_()
    hi = torch.rand(case.inputs, dtype=torch.float64) + 0.5
    for lo, scale in ((0.0, 1.0), (0.0, hi), (-hi, 2 * hi)):
        term = functools.partial(penalty, form=form, lo=lo, hi=scale, **case.options)
        assert torch.autograd.gradcheck(term, (weight, bias))


@given(st.lists(eighths, min_size=1, max_size=6), eighths, st.integers(1, 16).map(lambda n: n / 8))
def test_paper_and_shifted_agree_while_a_unit_is_on(w: list[float], b: float, C: float) -> None:
    weight, bias = torch.tensor([w]), torch.tensor([b])
    paper, shifted = (penalty(weight, bias, C=C, form=form).item() for form in ("paper", "shifted"))
    assert shifted <= paper
    if b + C >= 0:
        assert paper == shifted


def descend(form: str, steps: int) -> tuple[Tensor, Tensor]:
    """Follow a penalty alone downhill, from one unit that fires."""
    weight = torch.tensor([[0.5, -0.5, 0.25]], requires_grad=True)
    bias = torch.tensor([0.25], requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        penalty(weight, bias, form=form).backward()
        optimizer.step()
    return upper_bound(weight, bias).detach(), bias.detach()


def test_descent_shows_the_papers_argument() -> None:
    for form in ("paper", "one-sided", "shifted"):
        bound, bias = descend(form, 500)
        assert bound.item() == pytest.approx(-1, abs=0.05), form
        assert bias.item() >= -1.05
    assert descend("distance", 500)[0].item() == pytest.approx(0, abs=0.05)
    assert descend("unbounded", 500)[1].item() == pytest.approx(0.25 - 5, abs=0.05)
    assert descend("l2", 500)[0].item() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_penalties_are_summed_in_float32(dtype: torch.dtype) -> None:
    ones = torch.ones(300, 300, dtype=dtype)
    totals = torch.stack([penalty(ones, ones[0]), penalty_bn(ones[0], ones[0], 2**20)])
    assert totals.dtype == torch.float32
    assert totals.tolist() == [300 * 300 + 600, 300 * (1024 + 2)]


@pytest.mark.parametrize("form", PENALTY_FORMS)
@pytest.mark.parametrize(("spare", "spared"), [(0.01, 1), (0.5, 0.5), (0.99, 1.0)])
def test_the_largest_penalties_are_spared_and_have_no_gradient(
    case: Case, form: str, spare: float, spared: float
) -> None:
    alone = sorted(REFERENCE[form]([w for _, w in terms], b, 1.0) for terms, b in case.units())
    count = spared if isinstance(spared, int) else math.ceil(spared * len(alone))
    bias = case.bias.clone().requires_grad_()
    computed = penalty(case.weight, bias, form=form, spare=spare, **case.options)
    assert computed.item() == pytest.approx(sum(alone[: len(alone) - count]))
    (gradient,) = torch.autograd.grad(computed, bias)
    assert int((gradient == 0).sum()) >= count
    if form == "paper":
        assert int((gradient == 0).sum()) == count


def test_every_kind_of_penalty_spares() -> None:
    weight, bias, scale, offset = norm_case(True)
    gamma, beta = torch.rand(2, 6, dtype=torch.float64)
    for compute in (
        functools.partial(penalty_bn, gamma, beta, 16),
        functools.partial(penalty_ln, weight, bias, scale, offset),
        functools.partial(penalty_gn, weight, bias, scale, offset, 10),
        functools.partial(penalty_gn, weight, bias, scale, offset, 10, rectified=True),
    ):
        most = [float(compute(spare=share) - compute(spare=0.99)) for share in (0.0, 0.3, 0.6, 0.9)]
        assert most == sorted(most, reverse=True)
        assert len(set(most)) == 4
        assert compute(spare=0.99) == 0, "of six units, six are spared"
        assert compute(spare=0.3, multiple=2) == compute(spare=0.3), "two is a multiple of two"
        assert compute(spare=0.3, multiple=4) == 2 * compute(spare=0.6), "four of six; the two count for a block"
        assert compute(spare=0.9, multiple=4) == 2 * compute(spare=0.6), "eight would be all six, so four"
        assert compute(spare=0.3, multiple=8) == compute(spare=1) == 0, "there are no eight"
        assert compute(spare=3) == compute(spare=0.5), "a number of units"
        assert compute(spare=2.2) == compute(spare=3), "rounded up, as schedules pass it"
        assert compute(spare=6) == compute(spare=7) == 0, "all there are"


@pytest.mark.parametrize("m", [1, 64, 100.0])
@pytest.mark.parametrize("C", [1.0, 0.25])
def test_batch_norm_penalties(m: float, C: float) -> None:
    gamma, beta = torch.randn(2, 9, dtype=torch.float64)
    pairs = list(zip(gamma.tolist(), beta.tolist(), strict=True))
    two_sided = sum(abs(g) * math.sqrt(m) + abs(b + C) for g, b in pairs)
    one_sided = sum(max(abs(g) * math.sqrt(m) + b + C, 0.0) for g, b in pairs)
    assert penalty_bn(gamma, beta, m, C=C).item() == pytest.approx(two_sided)
    assert penalty_bn(gamma, beta, m, C=C, form="one-sided").item() == pytest.approx(one_sided)
    leaves = (gamma.clone().requires_grad_(), beta.clone().requires_grad_())
    for form in NORM_PENALTY_FORMS:
        assert torch.autograd.gradcheck(functools.partial(penalty_bn, m=m, form=form), leaves)


def norm_case(affine: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    weight, bias = torch.randn(6, 8, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    scale, offset = torch.randn(2, 8, dtype=torch.float64) if affine else (None, None)
    return weight, bias, scale, offset


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_penalties_measure_the_highest_response(affine: bool, rms: bool) -> None:
    weight, bias, scale, offset = norm_case(affine)
    gain = weight if scale is None else weight * scale
    best = gain if rms else gain - gain.mean(dim=1, keepdim=True)
    x = torch.cat([best, torch.randn(500, 8, dtype=torch.float64)])
    norm = nn.functional.rms_norm if rms else nn.functional.layer_norm
    normed = norm(x, (8,), scale, eps=1e-30)
    z = (normed if offset is None else normed + offset) @ weight.T + bias
    highest = z.diagonal()
    torch.testing.assert_close(z.amax(dim=0), highest)
    centre = bias if offset is None else bias + weight @ offset
    for shift in (-20.0, 0.0, 20.0):
        arguments = (weight, bias + shift, scale, offset)
        two_sided = (highest - centre + (centre + shift + 0.5).abs()).sum()
        one_sided = (highest + shift + 0.5).clamp(min=0).sum()
        torch.testing.assert_close(penalty_ln(*arguments, C=0.5, rms=rms), two_sided)
        torch.testing.assert_close(penalty_ln(*arguments, C=0.5, rms=rms, form="one-sided"), one_sided)


def test_layer_norm_penalty_gradients() -> None:
    weight, bias, scale, offset = norm_case(True)
    leaves = tuple(x.clone().requires_grad_() for x in (weight, bias, scale, offset) if x is not None)
    for options in ({"form": form, "rms": rms} for form in NORM_PENALTY_FORMS for rms in (False, True)):
        assert torch.autograd.gradcheck(functools.partial(penalty_ln, **options), leaves)
    still = torch.zeros(2, 4, requires_grad=True)
    penalty_ln(still, None, None, None).backward()
    assert still.grad is not None
    assert still.grad.tolist() == [[0.0] * 4] * 2


DENSE, ROW = torch.zeros(3, 4), torch.zeros(4)
BAD_INPUT: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: penalty(DENSE, form="l1"), "form must be one of paper, one-sided, .*, got 'l1'"),
    (lambda: penalty_bn(ROW, ROW, 4, form="l2"), "form must be one of paper, one-sided, got 'l2'"),
    (lambda: penalty(DENSE, spare=math.nan), "spare must be from 0 to 1, or a number of units above 1, got nan"),
    (lambda: penalty_bn(ROW, ROW, 4, spare=-0.1), "spare must be from 0 to 1, or .*, got -0.1"),
    (lambda: penalty(DENSE, spare=math.inf), "spare must be from 0 to 1, or .*, got inf"),
    (lambda: penalty(DENSE, spare=0.5, multiple=0), "multiple must be at least 1, and a whole number, got 0"),
    (lambda: penalty(DENSE, spare=0.5, multiple=2.0), "multiple must be .* a whole number, got 2.0"),
    (lambda: penalty(DENSE, multiple=2), "multiple=2 rounds .*, so it needs spare above 0"),
    (lambda: penalty(DENSE, C=0.0), "C must be above 0 and finite, got 0.0"),
    (lambda: penalty(DENSE, C=math.nan), "C must be above 0 and finite, got nan"),
    (lambda: penalty_bn(ROW, ROW, 4, C=-1), "C must be above 0 and finite, got -1"),
    (lambda: penalty_ln(DENSE, None, None, None, C=math.inf), "C must be above 0 and finite"),
    (lambda: upper_bound(DENSE, lo=[0.0] * 3), r"lo must be one number or one per input channel \(4\)"),
    (lambda: condition(DENSE, hi=torch.ones(3, 4)), r"hi must be one .* \(4\), got shape \(3, 4\)"),
    (lambda: upper_bound(torch.zeros(4, 2, 3), hi=[1.0] * 2, groups=2), r"input channel \(4\)"),
    (lambda: penalty(DENSE, lo=-math.inf), "lo must be finite"),
    (lambda: penalty(DENSE, hi=math.inf), "hi must be finite"),
    (lambda: upper_bound(DENSE, lo=1.0, hi=0.0), "lo must not exceed hi"),
    (lambda: condition(DENSE, lo=math.nan), "neither may be NaN"),
    (lambda: upper_bound(DENSE, ROW), r"bias must hold one number per unit \(3\), got shape \(4,\)"),
    (lambda: penalty(torch.zeros(3, 4, 2), groups=2), "groups=2 does not divide the weight's 3 unit"),
    (lambda: penalty(torch.zeros(3, 4, 2), groups=2, transposed=True), "3 input rows"),
    (lambda: penalty(ROW), "weight must be a floating-point tensor with at least 2 axes"),
    (lambda: condition(DENSE.long()), "weight must be a floating-point tensor"),
    (lambda: condition_bn(ROW, DENSE[:, 0], 4), "gamma and beta must hold one number per unit"),
    (lambda: condition_bn(ROW, ROW, 0), "m must be the number of values per channel"),
    (lambda: penalty_ln(ROW, None, None, None), r"weight must be dense \[units, inputs\]"),
    (lambda: penalty_ln(DENSE, None, ROW[:3], None), r"ln_weight must hold one .* \(4\), got 3"),
]


@pytest.mark.parametrize(("attempt", "sentence"), BAD_INPUT)
def test_bad_input_gets_one_clear_sentence(attempt: Callable[[], Tensor], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        attempt()
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).endswith(".")


def test_a_share_that_is_a_whole_number_but_for_rounding_is_that_number() -> None:
    wrong = [(n, share) for n in range(1, 257) for share in range(1, 100)
             if pressed(n, share / 100, 1) != n - -(-n * share // 100)]  # fmt: skip
    assert wrong == []
