"""Watch the processes that Lightning starts beside this one, and check the port over which they find each other."""

import contextlib
import socket
import subprocess
from collections.abc import Callable

from lightning_fabric.plugins.environments import TorchElasticEnvironment
from pytorch_lightning import Trainer
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

from solo_hcsc.errors import UserError
from solo_hcsc.launch import is_main_process


class Launcher(_SubprocessScriptLauncher):
    """Start processes as Lightning does, and give them to `watch`.

    Lightning's own observer gets none: as soon as one has failed, it kills all, this process too, without a word.
    """

    def __init__(
        self, lightnings: _SubprocessScriptLauncher, watch: Callable[[list[subprocess.Popen[bytes]]], None]
    ) -> None:
        super().__init__(lightnings.cluster_environment, lightnings.num_processes, lightnings.num_nodes)
        self._watch = watch
        self._children: list[subprocess.Popen[bytes]] = []

    def _call_children_scripts(self) -> None:
        super()._call_children_scripts()
        self._children, self.procs = self.procs, []
        self._watch(self._children)

    def kill(self, signum: int) -> None:
        for child in self._children:
            child.send_signal(signum)


def watch_children(trainer: Trainer, watch: Callable[[list[subprocess.Popen[bytes]]], None]) -> None:
    """Have `watch` called with the processes that the Trainer will start, if it is to start any."""
    launcher = trainer.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        trainer.strategy._launcher = Launcher(launcher, watch)


def check_port(trainer: Trainer) -> None:
    """Refuse a port, of the environment's MASTER_PORT, that the main process could not listen on."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if trainer.world_size == 1 or environment is None or not is_main_process():
        return
    if isinstance(environment, TorchElasticEnvironment):  # torchrun listens there itself
        return
    try:
        with contextlib.closing(socket.create_server(("", environment.main_port))):
            pass
    except (ValueError, OverflowError) as error:
        raise UserError(f"MASTER_PORT: {error}; give a number from 1 to 65535, or leave it out") from error
    except OSError as error:
        raise UserError(
            f"MASTER_PORT {environment.main_port}: cannot be listened on ({error.strerror}); give another port, or "
            "leave it out and a free one is taken"
        ) from error
