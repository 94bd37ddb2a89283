"""A network for workers of a cluster: it notes who builds it, and has its runs write checkpoints all the time."""

import os
from pathlib import Path

from tests.experiments import own_target
from torch import nn

from nodedrop.experiments import run

data = own_target.data


def net() -> nn.Module:
    run.CHECKPOINT_SECONDS = 0.2
    with Path(os.environ["NODEDROP_TEST_STARTS"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return own_target.net()
