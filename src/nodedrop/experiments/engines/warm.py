"""What every run needs: loaded once, in the process that those of the runs are forked from."""

import torch._dynamo  # noqa: F401  -- loaded on the first trace, which takes some seconds

from .. import run  # noqa: F401
