"""Optional packages: which there are, and what to install for one that is not."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import InputError

# The modules that each extra of the package brings.
EXTRAS: dict[str, tuple[str, ...]] = {
    "lightning": ("lightning",),
    "hf": ("transformers", "accelerate"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "ray": ("ray",),
    "report": ("plotly", "matplotlib", "tensorboard"),
}


class MissingExtraError(InputError):
    """An optional package is not installed."""


def missing(extra: str) -> tuple[str, ...]:
    """The modules of an extra that are not installed."""
    return tuple(name for name in EXTRAS[extra] if find_spec(name) is None)


def command(extra: str) -> str:
    """What installs an extra.

    >>> command("onnx")
    "pip install 'nodedrop[onnx]'"
    """
    return f"pip install 'nodedrop[{extra}]'"


def needed(extra: str, purpose: str) -> None:
    """An error that names the command, unless the extra is installed."""
    if absent := missing(extra):
        raise MissingExtraError(f"{purpose} needs {', '.join(absent)}; install with: {command(extra)}")
