"""`nodedrop verify`: prove or refute that a smaller network computes the same, from files, years later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .domains import DomainOption, domain_of, part_of
from .progress import JsonOption
from .subject import input_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..onepage import Answer
    from ..verify import Verdict

FEW = 6  # numbers of an input that are printed
EXAMPLE = (
    "Example: nodedrop verify --before a.safetensors --after b.safetensors --model package.module:network "
    "--ledger ledger.jsonl   ·   a run: nodedrop verify runs/first   ·   Exit code 0 proved, 1 refuted, 3 not proved"
)


def verify(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a run: checks every cut of it.", metavar="[RUN]")
    ] = None,
    before: Annotated[Path | None, typer.Option(help="Weights of the larger network.")] = None,
    after: Annotated[Path | None, typer.Option(help="Weights of the smaller network.")] = None,
    model: Annotated[str | None, typer.Option(help="The larger network, package.module:factory or file.py:f.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The certificates, which are then derived again.")] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,N,…", help="Shape of an input, 2,3,32,32 or 2,16:int64, or module:function; repeatable."
        ),
    ] = None,
    domain: DomainOption = None,
    mode: Annotated[str, typer.Option(help="Without a ledger: both, train or eval.")] = "both",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Without a ledger: the largest training batch.")] = None,
    small: Annotated[bool, typer.Option("--small", help="A pair and its ledger, by the checker of one page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prove that two networks compute the same for every input of the domain, or find an input on which they differ.

    Nothing of what made the smaller network is used: each certificate is derived again from the weights. Without a
    ledger any pair will do whose larger network differs by units that were taken out, whoever did it.
    """
    box, hints = None if not domain else domain_of(domain), list[str]()
    if small:
        if run is not None or box is not None or batch_size is not None or not (before and after and model and ledger):
            raise InputError("--small takes --before, --after, --model and --ledger, whose domain and batch size count")
        answer = _by_one_page(before, after, model, ledger, example)
        told = {"verdict": answer.status, "reason": answer.reason, "units": answer.units}
        typer.echo(json.dumps(told) if as_json else f"{answer.status}: {answer.reason}")
        raise typer.Exit({"proved": 0, "refuted": 1, "not proved": 3}[answer.status])
    if run is not None:
        if before or after or ledger:
            raise InputError("a run knows its files; leave --before, --after and --ledger out, or the run")
        verdict = _of_run(run, model, box)
        if box is None and model is None:  # an answer to the run's own terms
            _keep(verdict, run)
    elif before is None or after is None or model is None:
        raise InputError("name the folder of a run, or --before and --after with --model package.module:factory")
    else:
        pair = _nets(before, after, model)
        verdict = _of_pair(pair, model, ledger, example, box, mode, batch_size)
        if ledger is None and batch_size is None and mode != "eval" and verdict.status == "not proved":
            hints += _about_batches(pair[0])
    typer.echo(json.dumps(verdict.to_json()) if as_json else "\n".join([_told(verdict), *hints]))
    raise typer.Exit(verdict.code)


def _keep(verdict: Verdict, folder: Path) -> None:
    """Leave the answer with the run, for its report; a folder that cannot be written to is no obstacle."""
    from ..training.atomic import replacing

    try:
        with replacing(folder / "verdict.json") as path:
            path.write_text(json.dumps(verdict.to_json()) + "\n", encoding="utf-8")
    except OSError:
        pass


def _told(verdict: Verdict) -> str:
    """The verdict in words, with a few numbers of an input that shows a difference."""
    shown = verdict.counterexample
    if shown is None:
        return str(verdict)
    head = str(shown).partition(" on the input ")[0]
    return str(verdict).replace(str(shown), f"{head} on the input {' and '.join(map(_begun, shown.inputs))}")


def _begun(value: Tensor) -> str:
    numbers = [f"{number:.4g}" for number in value.flatten()[:FEW].tolist()]
    shape = f"of shape {tuple(value.shape)}"
    if value.numel() <= FEW:
        return f"{shape}: {', '.join(numbers)}"
    return f"{shape} that begins {', '.join(numbers)} (--json prints all of it)"


def _about_batches(net: nn.Module) -> list[str]:
    """What batch norm needs for a proof in train mode."""
    from torch.nn.modules.batchnorm import _BatchNorm

    if not any(isinstance(module, _BatchNorm) for module in net.modules()):
        return []
    return [
        "in train mode batch norm's bound grows with the batch, and here that may be any: give --batch-size N, the "
        "largest batch you train with, or --mode eval if the network is used in eval mode only"
    ]


def _of_pair(
    pair: list[nn.Module], model: str, ledger: Path | None, example: list[str] | None, box: Any, mode: str,
    batch_size: int | None,
) -> Verdict:  # fmt: skip
    from ..verify import verify

    modes = {"both": ("eval", "train"), "eval": ("eval",), "train": ("train",)}.get(mode)
    if modes is None:
        raise InputError(f"--mode must be both, train or eval, not '{mode}'")
    inputs = _examples(example, box) if example else _stated(_header(ledger), model) if ledger else None
    if inputs is None:
        raise InputError("give the shape of an input, such as --example 2,3,32,32, or a ledger, which knows it")
    _require_fit(pair[0], inputs, model)
    return verify(pair[0], pair[1], inputs, box, ledger=ledger, modes=modes, batch_size=batch_size)


def _by_one_page(before: Path, after: Path, model: str, ledger: Path, example: list[str] | None) -> Answer:
    from ..onepage import check

    pair = _nets(before, after, model)
    inputs = _examples(example, None) if example else _stated(_header(ledger), model)
    _require_fit(pair[0], inputs, model)
    return check(pair[0], pair[1], inputs, ledger)


def _nets(before: Path, after: Path, model: str) -> list[nn.Module]:
    """The network with the weights of either file."""
    from ..experiments.own import find
    from ..training import load

    pair = []
    for path in (before, after):
        net: nn.Module = find(model)()
        load(net, path, cut_elsewhere=True)  # whoever took units out, the checker finds what that changed
        pair.append(net)
    return pair


def _require_fit(net: nn.Module, inputs: Any, model: str) -> None:
    """The network takes such inputs."""
    import copy

    import torch

    from ..tracing import split_inputs

    args, kwargs = split_inputs(inputs)
    try:
        with torch.no_grad():
            copy.deepcopy(net).eval()(*args, **kwargs)
    except (RuntimeError, IndexError, TypeError, ValueError, AssertionError) as error:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        shapes = " and ".join(str(tuple(value.shape)) for value in tensors)
        why = str(error).strip().partition("\n")[0]
        what = f"{model} takes no input of shape {shapes}; give one that it takes, --example N,N,… ({why})"
        raise InputError(what) from None


def _of_run(folder: Path, model: str | None, box: Any) -> Verdict:
    from ..experiments.own import find
    from ..training import load
    from ..verify.run import verify_run

    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}'; name that of a run, or of a ledger")
    if not (folder / "ledger.jsonl").is_file():
        raise InputError(f"'{folder}' holds no ledger.jsonl; name the folder of a run, or of a ledger")
    header = _header(folder / "ledger.jsonl")
    nets = [find(model)() if model is not None else _network(folder, header) for _ in range(2)]
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"the run in '{folder}' has not ended: there is no model.safetensors")
    load(nets[1], folder / "model.safetensors", cut_elsewhere=True)  # the checker finds what differs
    return verify_run(nets[0], nets[1], _stated(header, str(folder)), folder / "ledger.jsonl", box)


def _network(folder: Path, header: dict[str, Any]) -> nn.Module:
    """The network that a run's recipe names, for inputs and outputs of the ledger's shapes."""
    from ..experiments.making import network_for
    from ..experiments.own import find, is_own
    from ..experiments.recipes import Recipe, changed
    from ..experiments.run import configuration

    stored = configuration(folder)
    if stored is None:
        raise InputError(f"'{folder}' has no config.json of a run; name the network with --model module:factory")
    recipe = changed(Recipe(), stored)
    if is_own(recipe.network):
        made: nn.Module = find(recipe.network)()
        return made
    return network_for(recipe, header["inputs"][0]["shape"], header["outputs"][0][1])


def _header(path: Path | None) -> dict[str, Any]:
    """The first line of a ledger, to see what inputs it speaks of; the checker reads it again."""
    try:
        with open(path or "", encoding="utf-8") as file:
            line = json.loads(file.readline())
        return {"inputs": line["inputs"], "outputs": line["outputs"]}
    except OSError as error:
        raise InputError(f"the ledger '{path}' cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"'{path}' is no ledger: its first line says nothing of inputs") from None


def _stated(header: dict[str, Any], where: str) -> tuple[Tensor, ...]:
    import torch

    try:
        return tuple(torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"])) for item in header["inputs"])
    except (TypeError, KeyError, AttributeError, RuntimeError):
        raise InputError(f"the ledger of {where} states inputs that there are none of; give --example") from None


def _examples(texts: list[str], box: Any) -> Any:
    from ..experiments.own import find

    if len(texts) == 1 and not texts[0][:1].isdigit():
        return find(texts[0])()
    return tuple(input_of(text, part_of(box, seed), seed) for seed, text in enumerate(texts))
