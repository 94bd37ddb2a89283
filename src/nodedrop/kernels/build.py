"""C sources of this package, compiled on first use, kept in the user's cache and loaded into the process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# Tried in this order. OpenMP is compiled in but not linked, so that its symbols are those of the runtime torch has
# loaded and both share one pool of threads; without such a runtime the library does not load and the next is tried.
_TARGETS = (("-march=native", "-fopenmp"), ("-march=native",), ("-fopenmp",), ())
_OPTIONS = ("-std=c11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_SECONDS = 120


class BuildError(Exception):
    """Why there is no library or kernel; never leaves the package."""


def wanted() -> None:
    """Refuse to compile where NODEDROP_NATIVE=0 leaves everything to torch."""
    if os.environ.get("NODEDROP_NATIVE", "1") == "0":
        raise BuildError("turned off by NODEDROP_NATIVE=0")


def load(source: Path) -> tuple[ctypes.CDLL, Path]:
    """The library of a C file, built unless the cache has it, and where it lies."""
    wanted()
    compiler = _compiler()
    reasons = []
    for target in _TARGETS:
        try:
            path = _built(source, compiler, (*_OPTIONS, *target))
            return ctypes.CDLL(str(path)), path
        except subprocess.CalledProcessError as error:
            reasons.append(str(error.stderr).strip().partition("\n")[0])
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(str(error))
    raise BuildError(f"{compiler} gave no library that loads: {reasons[0]}")


def _compiler() -> str:
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None or os.name != "posix":
        raise BuildError(f"no C compiler found (looked for {', '.join(names)})")
    return found


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "nodedrop"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    return done.stdout


def _built(source: Path, compiler: str, options: tuple[str, ...]) -> Path:
    """The macros a compiler predefines tell its version, the processor and the options that matter."""
    macros = _run(compiler, *options, "-dM", "-E", str(source))
    key = hashlib.sha256("\n".join([source.read_text(encoding="utf-8"), *options, macros]).encode()).hexdigest()
    path = _cache() / f"{source.stem}-{key[:20]}.so"
    if path.exists():
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = os.path.join(folder, "kernel.o"), os.path.join(folder, "kernel.so")
        _run(compiler, *options, "-c", str(source), "-o", compiled)
        _run(compiler, "-shared", compiled, "-o", linked)
        os.replace(linked, path)  # whole or not at all, whoever else builds it
    return path
