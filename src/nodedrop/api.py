"""The two calls that run the whole compiler: `analyze` looks, `compact_` cuts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from .analysis import Analysis, Ledger
from .errors import InputError
from .intake import Options
from .ledger import LedgerFile
from .session import Session
from .spelling import near


def analyze(module: nn.Module, example_inputs: Any, domain: Any = (0.0, 1.0), **options: Any) -> Analysis:
    """Find every unit that can go without changing what the module computes. Changes nothing.

    `domain` is the box the inputs lie in: `(lo, hi)`, a `Box`, or one per input. `evidence` is "proved" (default),
    "batch-proved" (in training mode only, as the paper does with batch norm) or "observed" (on `samples`); `mode` says
    whether a proof must cover "both" train and eval mode (default) or one of them; `batch_size` declares the largest
    training batch, which batch norm's bound in training mode depends on; `dtype` is the lowest precision the module
    will run in, if lower than its parameters'. With `learning`, what still has gradients stays. `bounds="linear"`
    follows values back to the inputs by linear relaxation, which finds more and takes longer; "interval" (default) is
    as fast as a forward pass.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.5, -1.0], [1.0, 2.0]]))
    ...     _ = net[0].bias.copy_(torch.tensor([0.0, -0.6, 0.0]))
    >>> [(c.layer, c.index) for c in analyze(net, torch.rand(4, 2)).removable]
    [('0', 1)]
    """
    session = Session(module, example_inputs, _options(domain, options))
    return _with_hint(session, session.analysis())


@torch.inference_mode(False)  # weights that are made under it could not be trained
def compact_(
    module: nn.Module,
    example_inputs: Any,
    domain: Any = (0.0, 1.0),
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    on_collapse: Literal["error", "keep"] = "error",
    ledger: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Ledger:
    """Remove every unit that `analyze` certifies, in place: parameters, buffers, sizes and optimizer state.

    All or nothing: the smaller module is compared with the original on the example, in train and eval mode, before
    anything is final. A cut that would leave a layer without units is an error, or with `on_collapse="keep"` leaves
    one unit. `ledger` is a file to write the certificates to, which `nodedrop.verify` checks. With an `optimizer`
    training goes on, and what still has gradients stays: constants, units that nobody reads yet, and those that are 0
    only by their weights (`learning=False` takes them, too).

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.5, -1.0], [1.0, 2.0]]))
    ...     _ = net[0].bias.copy_(torch.tensor([0.0, -0.6, 0.0]))
    >>> ledger = compact_(net, torch.rand(4, 2))
    >>> net[0], ledger.parameters_before, ledger.parameters_after
    (Linear(in_features=2, out_features=2, bias=True), 13, 9)
    """
    if on_collapse not in ("error", "keep"):
        raise InputError(f"on_collapse must be 'error' or 'keep', not {on_collapse!r}")
    chosen = _options(domain, {"learning": optimizer is not None, **options})
    if ledger is not None and chosen.bounds == "linear":
        raise InputError(
            "a ledger holds bounds that `nodedrop verify` derives again, and it knows intervals alone; leave ledger= "
            "or bounds='linear' out"
        )
    session = Session(module, example_inputs, chosen, optimizer)
    before = _parameter_count(session.module)
    file = None if ledger is None else LedgerFile(ledger, witness=False)
    if file is not None:
        file.follow(session)
        file.begin()
    outcome = session.cut_(on_collapse)
    analysis = _with_hint(session, outcome.analysis)
    return Ledger(analysis, before, _parameter_count(session.module), outcome.difference)


def _with_hint(session: Session, analysis: Analysis) -> Analysis:
    """Say what else could go if batch norm had a largest batch in train mode, or no train mode at all."""
    options = session.options
    if options.mode != "both" or session.program.notes or not session.any_batch:
        return analysis
    size, now = session.example_batch, session.removable(options)
    others = {f"batch_size={size}": replace(options, batch_size=size), "mode='eval'": replace(options, mode="eval")}
    more = {words: session.removable(other) - now for words, other in others.items()}
    if told := [f"{count} with {words}" for words, count in more.items() if count > 0]:
        note = f"more can go, {' and '.join(told)}: in train mode the batch bounds batch norm, and here it may be any"
        return replace(analysis, notes=(*analysis.notes, note))
    return analysis


def _options(domain: Any, options: Mapping[str, Any]) -> Options:
    known = list(Options.__dataclass_fields__)
    if strange := sorted(set(options) - set(known)):
        named = [*known, "optimizer", "on_collapse", "ledger"]  # the last three of compact_ alone
        hint = near(strange[0], named, "{}=") or ";"
        raise InputError(f"unknown option '{strange[0]}'{hint} there are {', '.join(named)}")
    return Options(domain=domain, **options)


def _parameter_count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
