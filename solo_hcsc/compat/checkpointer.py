"""The framework's Checkpointer callback."""

import inspect
import json
import os
from typing import Any

from solo.utils.checkpointer import Checkpointer

from solo_hcsc.compat.fix import fixes


@fixes(broken=lambda: "is_global_zero" in inspect.getsource(Checkpointer.save).partition("save_checkpoint")[0])
def save_on_all_processes() -> None:
    """`save` calls `trainer.save_checkpoint` on rank 0 only, where two processes wait for each other for ever."""

    def save(self: Any, trainer: Any) -> None:
        if trainer.sanity_checking:
            return
        path = self.path / self.ckpt_placeholder.format(trainer.current_epoch)
        trainer.save_checkpoint(path)
        outdated = self.last_ckpt not in (None, path) and not self.keep_previous_checkpoints
        if outdated and trainer.is_global_zero:
            os.remove(self.last_ckpt)
        self.last_ckpt = path

    Checkpointer.save = save


@fixes(broken=lambda: "max_epochs" not in inspect.getsource(Checkpointer.on_train_epoch_end))
def save_the_last_epoch() -> None:
    """With `--checkpoint_frequency 10` of 100 epochs the last one saved is the 91st, and the final weights are lost."""

    def on_train_epoch_end(self: Any, trainer: Any, _: Any) -> None:
        is_last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.should_stop
        is_last = is_last or 0 < trainer.max_steps <= trainer.global_step
        if is_last or trainer.current_epoch % self.frequency == 0:
            self.save(trainer)

    Checkpointer.on_train_epoch_end = on_train_epoch_end


@fixes(broken=lambda: "not serializable" in inspect.getsource(Checkpointer.save_args))
def save_args_as_json() -> None:
    """`args.json` says "<not serializable>" for every path, the data folder first."""

    def save_args(self: Any, trainer: Any) -> None:
        if trainer.is_global_zero:
            text = json.dumps(vars(self.args), indent=2, default=str)
            (self.path / "args.json").write_text(text + "\n")

    Checkpointer.save_args = save_args
