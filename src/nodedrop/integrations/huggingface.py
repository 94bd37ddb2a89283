"""NodeDrop in the Hugging Face Trainer: `Trainer(callbacks=[NodeDropCallback(example_inputs={...})], ...)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..training import save
from ..training.schedules import Schedule
from . import Shrinking, require_one_process, shrink_on_load

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError:
        message = "nodedrop.integrations.huggingface needs transformers; pip install 'nodedrop[hf]'"
        raise ModuleNotFoundError(message, name="transformers") from None

FILE = "nodedrop.safetensors"
_STATE = "nodedrop"


class NodeDropCallback(Shrinking, TrainerCallback):
    """Adds the penalty's gradient before each optimizer step and cuts at the end of an epoch, or every so many steps.

    `example_inputs` are keyword inputs of the model, without labels. All other options are those of
    `nodedrop.NodeDrop`, which is in `drop` once training runs. Beside each checkpoint's own files lies
    `nodedrop.safetensors`, which `nodedrop.load` reads. Training resumes if the Trainer was built with this callback:
    its model then shrinks to a checkpoint's widths before it loads.
    """

    def __init__(
        self,
        example_inputs: dict[str, Any],
        lam: float | Schedule = 1e-5,
        *,
        every: Literal["epoch"] | int = "epoch",
        **options: Any,
    ) -> None:
        given: object = example_inputs
        if not isinstance(given, Mapping):
            raise InputError(f"example_inputs must be a dict of keyword inputs, not a {type(given).__name__}")
        super().__init__(lam, every=every, example_inputs=example_inputs, **options)

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The only event before the weights of a checkpoint are loaded."""
        if given.get("model") is not None:
            shrink_on_load(given["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Weights and optimizer are loaded, and on their device."""
        require_one_process(args.world_size)
        if args.load_best_model_at_end:
            raise InputError(
                "load_best_model_at_end=True and NodeDropCallback do not go together: the best model may be wider "
                f"than the last; leave it out and load '{FILE}' of the best checkpoint into a model built anew"
            )
        inputs = {k: v.to(args.device) if isinstance(v, Tensor) else v for k, v in self.example_inputs.items()}
        left = self.end(given["model"])
        lower = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
        self.options.setdefault("dtype", lower)
        with _own_forward(given["model"]):
            stored = state.stateful_callbacks.get(_STATE, left)
            self.start(given["model"], _plain(given["optimizer"]), inputs, stored)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Comes once per step, after clipping."""
        self.add_gradient(_plain(given["optimizer"]), getattr(given["optimizer"], "scaler", None))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Comes after the optimizer's step, before the checkpoint of this step."""
        with _own_forward(given["model"]):
            self.after_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Comes before the checkpoint of this epoch."""
        with _own_forward(given["model"]):
            self.after_epoch()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Add to what is printed, and to the history."""
        for logs in (given["logs"], *state.log_history[-1:]):
            logs.update(self.measures())

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Add the model with its widths, and the counters, to a checkpoint that was just written."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if self.drop is not None and args.should_save and folder.is_dir():
            save(self.drop.model, folder / FILE)
            state.stateful_callbacks[_STATE] = self.drop.state_dict()
            state.save_to_json(str(folder / "trainer_state.json"))


def _plain(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself, out of accelerate's wrapper."""
    found: Optimizer = getattr(optimizer, "optimizer", optimizer)
    return found


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """Without the forward that accelerate puts over the model's own for mixed precision, which cannot be traced."""
    over = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if over is not None:
            model.forward = over
