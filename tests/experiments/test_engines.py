"""Which engine it is, and what is said if there is none."""

import socket
from importlib.util import find_spec

import pytest

from nodedrop.errors import InputError
from nodedrop.experiments.sweep import Processes, engine_of
from nodedrop.export import extras


def test_engines_by_name() -> None:
    assert engine_of("local", 3) == Processes(3)
    with pytest.raises(InputError, match=r"^there is no engine 'slurm'; there are local and ray$"):
        engine_of("slurm", 2)
    with pytest.raises(InputError, match=r"^--address names a Ray cluster, and goes with --engine ray$"):
        engine_of("local", 2, "first:6379")


def test_a_missing_ray_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    with pytest.raises(InputError, match=r"^the engine ray needs ray; install with: pip install 'nodedrop\[ray\]'$"):
        engine_of("ray", 2)


def test_an_address_at_which_nobody_answers_is_found_out_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InputError, match=rf"^no Ray cluster answers at '127\.0\.0\.1:{port}': .*ray status$"):
        engine_of("ray", 2, f"127.0.0.1:{port}")
    with pytest.raises(InputError, match="and not 'nonsense'"):
        engine_of("ray", 2, "nonsense")
