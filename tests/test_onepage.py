"""The checker of one page: what it proves, what it leaves open, and that nothing false gets past it."""

from __future__ import annotations

import ast
import copy
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.verify.forging import borrow, forgeries, mended, merge, read, swap, write
from tests.verify.test_command import network
from tests.verify.test_forgeries import FALSE, convolutions, mlp
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import nodedrop as nd
from nodedrop import onepage
from nodedrop.cli.app import app
from nodedrop.experiments.networks import Dense, Options, build
from nodedrop.ledger import fingerprint
from nodedrop.onepage import Answer, check
from nodedrop.verify import Verdict, verify

SOURCE = Path(onepage.__file__)
Pair = tuple[nn.Module, nn.Module, Tensor, Path]


def kill(net: nn.Module, share: float = 0.3) -> nn.Module:
    """Some units of every hidden layer can never fire, since what they read lies in [0, 6]."""
    with torch.no_grad():
        for layer in [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Conv1d)][:-1]:
            dying = torch.rand(len(layer.weight)) < share
            layer.bias[dying] = -7 * layer.weight.clamp(min=0).flatten(1).sum(1)[dying] - 1
    return net


def cut(net: nn.Module, x: Tensor, folder: Path, **options: Any) -> Pair:
    """A network before and after, with the ledger."""
    before, path = copy.deepcopy(net), folder / "ledger.jsonl"
    folder.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # of the pair before
    nd.compact_(net, x, ledger=path, on_collapse="keep", **options)
    return before, net, x, path


def restated(pair: Pair, change: Callable[[list[dict[str, Any]]], None], folder: Path) -> Pair:
    """The same pair with another ledger, whose chain is whole."""
    lines = read(pair[3])
    change(lines)
    return *pair[:3], write(folder / "restated.jsonl", mended(lines))


def wide(before: nn.Module, after: nn.Module, x: Tensor, ledger: Path) -> Verdict:
    """The answer of the wide checker."""
    return verify(before, after, x, ledger=ledger, tries=1)


class Residual(nn.Module):
    """relu(a) + relu6(b), and relu(c(x) + x): units that go together."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(2, 6, 1)
        self.three, self.last, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 5), nn.Linear(5, 3)
        with torch.no_grad():
            for layer in (self.one, self.two, self.three, self.last):
                layer.bias[:2] = -90.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x).relu() + F.relu6(self.two(x))
        y = (self.three(y) + y).clamp(0.0, 1.0)
        y = F.adaptive_avg_pool2d(F.avg_pool2d(y, 2, padding=1), (1, 1)).reshape(len(x), -1)
        return self.head(F.hardtanh(self.last(y), 0.0, 1.0))


def normed() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding="same"), nn.BatchNorm2d(6), nd.ClampedReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
        nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5, affine=False), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(5, 2),
    )  # fmt: skip
    with torch.no_grad():
        net[1].bias[[0, 3]], net[5].bias[[1, 2]] = -40.0, -60.0
        net[1].running_mean.uniform_(), net[1].running_var.uniform_(0.5, 2.0)
        net[6].running_mean.uniform_(), net[6].running_var.uniform_(0.5, 2.0)
    return net


def sequence() -> nn.Module:
    return kill(nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.ReLU6(), nn.Dropout(0.4), nn.MaxPool1d(2), nn.Conv1d(6, 5, 2),
        nn.Hardtanh(), nn.ReLU(), nn.AvgPool1d(3), nn.Flatten(), nn.Linear(5, 3),
    ))  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "dense": (lambda: kill(build("mnist-dense160", width=0.25)), (2, 1, 28, 28), {"mode": "eval"}),
    "vgg16": (lambda: kill(build("vgg16", width=1 / 16)), (2, 3, 32, 32), {"mode": "eval"}),
    "densenet": (lambda: kill(Dense(2, 4, active=True)(Options())), (2, 3, 8, 8), {}),
    "residual": (Residual, (2, 2, 6, 6), {}),
    "batch norm": (normed, (2, 1, 8, 8), {"mode": "eval"}),
    "sequence": (sequence, (2, 2, 8), {}),
    "double": (lambda: kill(build("mnist-dense160", width=0.125)).double(), (2, 1, 28, 28), {}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_paper_and_the_like_are_proved(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape, options = NETWORKS[name]
    net = make()
    pair = cut(net, torch.rand(shape, dtype=next(net.parameters()).dtype), tmp_path, **options)
    units = [line for line in read(pair[3]) if line["line"] == "unit"]
    answer = check(*pair)
    assert (answer.status, answer.units) == ("proved", len(units)), answer
    assert len(units) >= 4


def test_it_is_one_page_and_imports_nothing_of_ours() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not any(name.startswith("nodedrop") for name in names)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is traced once, since ledgers change and modules do not."""
    true, told = onepage.read, dict[Any, Any]()

    def once(module: nn.Module, inputs: Any, mode: str) -> Any:
        if (id(module), mode) not in told:
            told[id(module), mode] = true(module, inputs, mode)
        return told[id(module), mode]

    monkeypatch.setattr(onepage, "read", once)


@pytest.fixture(scope="module", params=[mlp, convolutions])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    torch.manual_seed(0)
    model, inputs = request.param()
    return cut(model, inputs, tmp_path_factory.mktemp("true"), mode="eval")


@pytest.mark.usefixtures("programs")
def test_no_forged_ledger_is_proved(case: Pair, tmp_path: Path) -> None:
    assert check(*case).status == "proved"
    accepted, tried = [], set()
    for what, forged in forgeries(read(case[3]), 90, seed=2):
        tried.add(what)
        if check(*case[:3], write(tmp_path / "forged.jsonl", forged)).status == "proved":
            accepted.append(what)
    assert accepted == []
    assert len(tried) > 15


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("field", sorted(FALSE.keys() - {"header.batch_size"}))
def test_a_false_value_of_any_field_is_not_proved(case: Pair, tmp_path: Path, field: str) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        line = next(line for line in lines if line["line"] == field.partition(".")[0])
        FALSE[field](line) if field != "unit.modes" else line.update(modes=["train"])

    answer = check(*restated(case, change, tmp_path))
    narrower = field == "header.inputs.lo" and "input in [0.25, 1.0]" in answer.reason  # a weaker theorem, and true
    assert answer.status != "proved" or narrower, answer


@pytest.mark.parametrize("text", ["", "x\n", "{}\n", "[]\n", "null\n", '{"line": "header", "hash": ""}\n', "\xff"])
def test_what_is_no_ledger_is_not_proved(case: Pair, tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger").write_text(text, encoding="latin-1")
    assert check(*case[:3], tmp_path / "ledger").status != "proved"


@pytest.mark.usefixtures("programs")
def test_a_unit_told_under_two_names_is_not_proved(case: Pair, tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        other = copy.deepcopy(next(line for line in lines if line["line"] == "unit" and line["weight"] == "0.weight"))
        lines.append(other | {"layer": "0.bias", "weight": "0.bias", "bound": None})
        lines[1]["units"] += 1

    assert check(*restated(case, change, tmp_path)).status != "proved"


def test_other_numbers_are_refuted(case: Pair, tmp_path: Path) -> None:
    """Also where the fingerprint was mended: what stays is compared bit for bit."""
    after = copy.deepcopy(case[1])
    with torch.no_grad():
        next(after.parameters()).view(-1)[0] += 1e-6
    assert check(case[0], after, *case[2:]).status == "refuted"
    tensors = {**dict(after.named_parameters()), **dict(after.named_buffers())}
    pair = restated(case, lambda lines: lines[1].update(after=fingerprint(tensors)), tmp_path)
    answer = check(case[0], after, *pair[2:])
    assert answer.status == "refuted"
    assert "is not '0.weight' before it" in answer.reason


def by_hand(before: nn.Sequential, x: Tensor, bound: float, folder: Path) -> Answer:
    """The answer if unit 0 of the first layer is taken out, whatever it may be, with a ledger that fits."""
    donor = copy.deepcopy(before)
    with torch.no_grad():
        donor[0].weight[0], donor[0].bias[0] = -1.0, -1.0
    _, after, _, path = cut(donor, x, folder)
    lines = read(path)
    unit = next(line for line in lines if line["line"] == "unit")
    assert [line["index"] for line in lines if line["line"] == "unit"] == [0]
    lines[0]["fingerprint"] = lines[1]["before"] = fingerprint(dict(before.named_parameters()))
    unit["bound"] = bound
    return check(before, after, x, write(folder / "made.jsonl", mended(lines)))


ULP = 2.0**-23  # of single precision above 1


def edge(bias: float) -> nn.Sequential:
    """Unit 0 is at most 1 + 3.75 ULP + bias."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight[0] = torch.tensor([1.0] + [0.75 * ULP] * 5)
        net[0].bias.fill_(9.0)
        net[0].bias[0] = bias
    return net


def test_a_bound_below_zero_is_not_enough_if_rounding_can_lift_it(tmp_path: Path) -> None:
    """1 and five times 0.75 ULP, added one by one in single precision, are 1 + 5 ULP."""
    total = torch.tensor(0.0)
    for weight in edge(0.0)[0].weight[0].tolist():
        total = total + weight
    assert 1 + 3.75 * ULP < 1 + 4 * ULP < float(total)
    for bias, proved in ((-(1 + 4 * ULP), False), (-1.00001, True), (-0.5, False)):
        answer = by_hand(edge(bias), torch.rand(2, 6), min(1 + 3.75 * ULP + bias, 0.0), tmp_path)
        assert (answer.status == "proved") == proved, (bias, answer)
    assert "may be as large as" in answer.reason


def test_zeros_around_an_image_count(tmp_path: Path) -> None:
    """With inputs in [0.5, 1], a unit that is below 0 inside is above 0 at the border."""
    for padding, proved in ((0, True), (1, False)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=padding), nn.ReLU(), nn.Conv2d(3, 2, 1))
        with torch.no_grad():
            net[0].bias.fill_(9.0)
        donor = copy.deepcopy(net)
        with torch.no_grad():
            net[0].weight[0], net[0].bias[0] = -1.0, 4.0
            donor[0].weight[0], donor[0].bias[0] = -1.0, -9.0
        x = torch.rand(2, 1, 5, 5) / 2 + 0.5
        _, after, _, path = cut(donor, x, tmp_path, domain=(0.5, 1.0))
        lines = read(path)
        lines[0]["fingerprint"] = lines[1]["before"] = fingerprint(dict(net.named_parameters()))
        lines[2]["bound"] = -0.5
        answer = check(net, after, x, write(tmp_path / "made.jsonl", mended(lines)))
        assert (answer.status == "proved") == proved, (padding, answer)


class Odd(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.between = nn.Linear(3, 4), nn.Linear(4, 2), between
        with torch.no_grad():
            self.one.bias[0] = -9.0

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x).relu()))


@pytest.mark.parametrize(("between", "name"), [
    (lambda x: x * 2, "aten.mul.Tensor"), (lambda x: x + 0.0, "aten.add.Tensor"), (torch.sigmoid, "aten.sigmoid"),
    (lambda x: x.add(x, alpha=2), "aten.add.Tensor"), (lambda x: x.relu_(), "aten.relu_"),
    (lambda x: x.clamp(0, 0.1), "limits"),
])  # fmt: skip
def test_what_has_no_rule_is_left_open(between: Callable[[Tensor], Tensor], name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    before, after, x, path = cut(Odd(torch.relu), torch.rand(2, 3), tmp_path)
    assert check(before, after, x, path).status == "proved"
    before.between = after.between = between
    answer = check(before, after, x, path)
    assert answer.status == "not proved"
    assert name in answer.reason


def test_other_code_behind_the_same_tensors_is_not_proved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before, after, x, path = cut(Odd(torch.relu), torch.rand(2, 3), tmp_path)
    for between in (lambda x: x, lambda x: F.hardtanh(x, 0.0, 1.0), lambda x: x.clone(), lambda x: x.flip(1)):
        after.between = between
        assert check(before, after, x, path).status == "not proved"


def test_terms_without_rules_are_left_open(tmp_path: Path) -> None:
    torch.manual_seed(0)
    half = kill(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))).bfloat16()
    assert "float32 and float64" in check(*cut(half, torch.rand(2, 3).bfloat16(), tmp_path)).reason
    observed = cut(kill(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))), torch.rand(2, 3), tmp_path)
    answer = check(*restated(observed, lambda lines: lines[0].update(evidence="observed"), tmp_path))
    assert (answer.status, "'observed'" in answer.reason) == ("not proved", True), answer
    net = kill(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    before, drop = copy.deepcopy(net), nd.NodeDrop(net, None, torch.rand(2, 3), ledger=tmp_path / "run.jsonl")
    drop.drop()
    with torch.no_grad():
        net[0].bias[0] = -9.0
    drop.drop()
    assert "use nodedrop verify RUN" in check(before, net, torch.rand(2, 3), tmp_path / "run.jsonl").reason


def sampled(seed: int) -> tuple[nn.Module, Tensor]:
    """A network of random layers that both checkers can read."""
    torch.manual_seed(seed)

    def pick(*options: Callable[[], nn.Module]) -> nn.Module:
        return options[int(torch.randint(len(options), ()))]()

    layers, width, size = list[nn.Module](), 2, 8
    for _ in range(int(torch.randint(1, 4, ()))):
        units, pad = int(torch.randint(2, 7, ())), int(torch.randint(2, ()))
        layers += [nn.Conv2d(width, units, 3, padding=pad), pick(nn.ReLU, nd.SoftClampedReLU, nn.ReLU6, nd.ClampedReLU)]
        pools = (lambda: nn.AvgPool2d(3, 1, 1)), (lambda: nn.MaxPool2d(3, 1, 1))
        layers.append(pick(nn.Identity, lambda: nn.Dropout(0.3), *pools))
        width, size = units, size + 2 * pad - 2
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * size**2, 6), nn.ReLU(), nn.Linear(6, 2))
    return kill(net, 0.4), torch.rand(2, 2, 8, 8)


def test_where_both_checkers_answer_they_agree(tmp_path: Path) -> None:
    """Of these networks some have units that are constant, for which there is no rule on one page."""
    answers = []
    for seed in (3, 4):
        pair = cut(*sampled(seed), tmp_path / str(seed))
        answer, verdict = check(*pair), verify(*pair[:3], ledger=pair[3], tries=1)
        assert answer.status == "not proved" or (answer.status, answer.units) == (verdict.status, verdict.units), answer
        answers.append(answer)
    assert all(a.status == "proved" or "constants folded into biases" in a.reason for a in answers), answers
    assert sum(a.status == "proved" for a in answers) >= 1


class Plain(nn.Module):
    """Random layers with batch norm, an activation and pooling or dropout around them, and ways past them."""

    def __init__(self, seed: int, depth: int = 4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        flat, width, self.pick = seed % 3 == 0, 3, random.Random(seed)
        self.layers, self.norms, self.between = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.joins, self.head = list[str](), nn.Linear(1, 2)
        self.shape = (2, 3) if flat else (2, 3, 7, 7)
        for _ in range(self.pick.randint(1, depth)):
            join = self.pick.choice(["", "", "add", "add before", "cat"]) if len(self.layers) else ""
            units = width if "add" in join else self.pick.randint(3, 6)
            bias = self.pick.random() < 0.8
            conv = partial(nn.Conv2d, kernel_size=3, padding=self.pick.choice([1, "same"]), bias=bias)
            self.layers.append(nn.Linear(width, units, bias=bias) if flat else conv(width, units))
            norm = self.pick.random() < 0.4 or not bias
            self.norms.append((nn.BatchNorm1d if flat else nn.BatchNorm2d)(units) if norm else nn.Identity())
            act = self.pick.choice([nn.ReLU, nd.SoftClampedReLU, nd.ClampedReLU, nn.ReLU6])()
            pool = nn.Identity() if flat else self.pick.choice([nn.AvgPool2d, nn.MaxPool2d])(3, 1, 1)
            more = self.pick.choice([nn.Identity(), nn.Dropout(0.3), pool])
            self.between.append(nn.Sequential(*([act, more] if self.pick.random() < 0.7 else [more, act])))
            self.joins.append(join)
            width += units if join == "cat" else units - width
            if norm:
                self.norms[-1].running_mean.normal_(), self.norms[-1].running_var.uniform_(0.5, 2.0)
            self._plant((self.norms if norm else self.layers)[-1].bias)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width if flat else 49 * width, 5))

    @torch.no_grad()
    def _plant(self, bias: Tensor) -> None:
        """Units that never fire, and one that does, so that those that read it are no constants."""
        bias[torch.rand(len(bias)) < 0.4] = -300.0
        bias[:2] = torch.tensor([0.5, -300.0])
        if len(self.layers) > 1:  # a unit that nobody reads
            self.layers[-1].weight[:, 2] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm, between, join in zip(self.layers, self.norms, self.between, self.joins, strict=True):
            y = norm(layer(x))
            y = between(y + x if join == "add before" else y)
            x = y + x if join == "add" else torch.cat([y, x], 1) if join == "cat" else y
        return self.head(x)


def test_both_checkers_agree_on_random_plain_networks(tmp_path: Path) -> None:
    units = 0
    for seed in range(15):
        net = Plain(seed, depth=1 + seed % 2).eval()
        pair = cut(net, torch.rand(net.shape), tmp_path / str(seed), mode="eval")
        answer, verdict = check(*pair), verify(*pair[:3], ledger=pair[3], tries=1)
        assert (answer.status, answer.units) == (verdict.status, verdict.units) == ("proved", verdict.units), answer
        units += answer.units
    assert units > 30


@pytest.mark.parametrize("forge", [merge, swap, borrow])
def test_units_told_with_what_does_not_go_with_them_are_not_proved(forge: Callable[..., None], tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        net[0].weight.fill_(0.5)
        net[0].bias.copy_(torch.tensor([-9.0, -9.0, 8.0, 1.0, 1.0]))
        net[2].weight[:, 2] = 0.0
    pair = cut(net, torch.rand(2, 2), tmp_path)
    for checker in (check, wide):
        assert checker(*pair).status == "proved"
        assert checker(*restated(pair, forge, tmp_path)).status != "proved"


def test_a_line_for_each_unit_of_a_residual_sum(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pair = cut(Residual(), torch.rand(2, 2, 6, 6), tmp_path)

    def fewer(lines: list[dict[str, Any]]) -> None:
        lines[2:] = [unit for unit in lines[2:] if unit["layer"] in ("one", "last")]
        lines[1]["units"] = len(lines) - 2

    assert check(*restated(pair, fewer, tmp_path)).status == "not proved"
    assert wide(*pair).status == "proved"
    assert "the ledger has no line for it" in wide(*restated(pair, fewer, tmp_path)).reason


class Aside(nn.Module):
    """A head that only training reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.aside = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        with torch.no_grad():
            self.one.bias[0] = -9.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        return self.two(x) + self.aside(x) if self.training else self.two(x)


def test_elements_that_only_another_mode_reads_go_with_their_unit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pair = cut(Aside(), torch.rand(2, 3), tmp_path, mode="eval")
    assert "aside.weight:1" in read(pair[3])[2]["with"]
    assert check(*pair).status == "proved"


def without_unit_0(net: nn.Sequential, x: Tensor, bound: float, folder: Path) -> tuple[Pair, Answer]:
    """The net and itself without unit 0 of its first layer, with a ledger that says it is dead."""
    donor = copy.deepcopy(net)
    with torch.no_grad():
        donor[0].weight[0], donor[0].bias[0] = 0.0, -9.0
        if isinstance(donor[1], nn.BatchNorm1d):
            donor[1].weight[0] = donor[1].running_var[0] = 1.0
    _, after, _, path = cut(donor, x, folder, domain=(float(x.min()), float(x.max())), mode="eval")
    lines = read(path)
    assert [unit["index"] for unit in lines[2:]] == [0]
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    lines[0]["fingerprint"] = lines[1]["before"] = fingerprint(tensors)
    lines[2]["bound"] = bound
    pair = net.eval(), after.eval(), x, write(folder / "made.jsonl", mended(lines))
    return pair, check(*pair)


def test_a_subnormal_factor_of_a_batch_norm_is_not_exact(tmp_path: Path) -> None:
    """1.67 times the least number is rounded to 2 of it, and what it multiplies may be large."""
    net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1e30], [1.0]])), net[0].bias.copy_(torch.tensor([0.0, 9.0]))
        net[1].weight[0], net[1].running_var[0], net[1].bias[0] = 2.0**-149, 0.36, -2.5e-15
        net[3].weight.copy_(torch.tensor([[1e30, 1.0]]))
    pair, answer = without_unit_0(net, torch.ones(2, 1), -1e-16, tmp_path)
    assert (pair[0](pair[2]) - pair[1](pair[2])).abs().min() > 1e12
    assert answer.status == "not proved"
    assert wide(*pair).status != "proved"
    found = nd.analyze(pair[0], pair[2], domain=(1.0, 1.0), mode="eval")
    assert not [unit for unit in found.units if unit.layer == "0" and unit.index == 0 and unit.status == "removed"]


def test_subnormal_weights_may_be_flushed(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[-1e-39], [1e-30]])), net[0].bias.copy_(torch.tensor([5e-10, 9.0]))
        net[2].weight.copy_(torch.tensor([[1e10, 1.0]]))
    pair, answer = without_unit_0(net, torch.full((2, 1), 2.0**100), -7.6765e-10, tmp_path)
    if torch.set_flush_denormal(True):
        try:
            assert (pair[0](pair[2]) - pair[1](pair[2])).abs().min() > 1
        finally:
            torch.set_flush_denormal(False)
    assert answer.status == "not proved"


def said(folder: Path, *more: str) -> Any:
    named = ["--before", str(folder / "before"), "--after", str(folder / "after"), "--ledger", str(folder / "ledger")]
    return CliRunner().invoke(app, ["verify", *named, "--model", "tests.verify.test_command:network", "--small", *more])


def test_the_command_line_answers_with_its_exit_code(tmp_path: Path) -> None:
    nd.save(network(), tmp_path / "before")
    small = network()
    nd.compact_(small, torch.rand(2, 3), ledger=tmp_path / "ledger")
    nd.save(small, tmp_path / "after")
    done = said(tmp_path, "--json")
    assert (done.exit_code, json.loads(done.output)["verdict"], json.loads(done.output)["units"]) == (0, "proved", 4)
    assert said(tmp_path, "--domain", "0,1").exit_code == 2
    assert CliRunner().invoke(app, ["verify", str(tmp_path), "--small"]).exit_code == 2
    lines = read(tmp_path / "ledger")
    lines[0]["evidence"] = "observed"
    write(tmp_path / "ledger", mended(lines))
    assert said(tmp_path).exit_code == 3
    lines[0]["fingerprint"] = "0" * 64
    write(tmp_path / "ledger", mended(lines))
    done = said(tmp_path)
    assert done.exit_code == 1
    assert done.output.startswith("refuted: the ledger speaks of another model")
