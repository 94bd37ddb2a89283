"""NodeDrop in Lightning: `Trainer(callbacks=[NodeDropCallback(lam=1e-5)])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import InputError
from ..training.schedules import Schedule
from . import Shrinking, require_one_process, shrink_on_load

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback
        except ModuleNotFoundError:
            message = "nodedrop.integrations.lightning needs Lightning; pip install 'nodedrop[lightning]'"
            raise ModuleNotFoundError(message, name="lightning") from None

# What the forward pass computes in where that is less than the parameters' precision: proofs count its rounding.
_PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class NodeDropCallback(Shrinking, Callback):
    """Adds the penalty's gradient before each optimizer step and cuts at the end of an epoch, or every so many steps.

    `example_inputs` default to the module's `example_input_array`, else to the first training batch (its first item,
    if it is a tuple or list). With `submodule`, only that part of the module is traced and cut. All other options are
    those of `nodedrop.NodeDrop`, which is in `drop` once training runs. A checkpoint resumes: the module shrinks to the
    checkpoint's widths before it loads.
    """

    def __init__(
        self,
        lam: float | Schedule = 1e-5,
        *,
        every: Literal["epoch"] | int = "epoch",
        submodule: str = "",
        example_inputs: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(lam, every=every, example_inputs=example_inputs, **options)
        self.submodule = submodule
        self._state: dict[str, Any] | None = None
        self._hook: RemovableHandle | None = None
        self._stepped = False

    @property
    def state_key(self) -> str:
        """Callbacks for different submodules keep apart."""
        return self._generate_state_key(submodule=self.submodule)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Comes before a checkpoint is loaded."""
        if self.submodule not in dict(pl_module.named_modules()):
            raise InputError(f"{type(pl_module).__name__} has no part '{self.submodule}', which submodule names")
        self._hook = shrink_on_load(pl_module)
        if stage == "fit":
            require_one_process(trainer.world_size)
            self._state = self.end(pl_module.get_submodule(self.submodule))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module as it came."""
        if self._hook is not None:
            self._hook.remove()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """With the first batch, everything is loaded, on its device, and there is an example."""
        if self.drop is not None:
            return
        example = self.example_inputs if self.example_inputs is not None else pl_module.example_input_array
        if example is None:
            example = batch[0] if isinstance(batch, list | tuple) else batch
        example = trainer.precision_plugin.convert_input(example)
        example = pl_module.transfer_batch_to_device(example, pl_module.device, 0)
        self.options.setdefault("dtype", _PRECISIONS.get(str(trainer.precision)))
        self.start(pl_module.get_submodule(self.submodule), trainer.optimizers, example, self._state)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Comes once per step, after unscaling and before clipping."""
        self.add_gradient(optimizer, getattr(trainer.precision_plugin, "scaler", None))
        self._stepped = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Comes after the optimizer's step, but also after batches that only add to the gradients."""
        if self._stepped:
            self.after_step()
        self._stepped = False
        pl_module.log_dict(self.measures())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Comes before a checkpoint of the epoch's end is written."""
        self.after_epoch()
        pl_module.log_dict(self.measures())

    def state_dict(self) -> dict[str, Any]:
        """Goes into Lightning's checkpoints."""
        return (self._state or {}) if self.drop is None else self.drop.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes after the weights are loaded and before the first batch, where it is used."""
        self._state = state_dict
