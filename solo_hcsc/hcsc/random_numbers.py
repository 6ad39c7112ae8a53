"""Random numbers that a checkpoint can go on with."""

import random

import torch

from solo_hcsc.hcsc.processes import Processes


class SeededNumbers:
    """The selection's own random numbers, from the run's seed on whatever device asks for them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.own_streams = 0  # how many `of_process` has made where there are several processes
        self._generator: torch.Generator | None = None
        self._loaded: tuple[str, torch.Tensor] | None = None  # device and state, from a checkpoint

    def of_process(self, device: torch.device, processes: Processes) -> torch.Generator:
        """Return the generator of what is drawn for this process's queries alone.

        Each of several processes gets a new stream of its own at every call. A stream depends on the seed, the process
        and the number of the call, so that the first process's checkpoint is enough for all. One process goes on with
        the numbers of `on`.
        """
        if processes.count == 1:
            return self.on(device)
        self.own_streams += 1
        seed = random.Random(f"{self.seed} {processes.rank} {self.own_streams}").getrandbits(63)
        return torch.Generator(device).manual_seed(seed)

    def on(self, device: torch.device) -> torch.Generator:
        """Return the generator of what is the same in all processes, which draw from it in the same order."""
        if self._generator is None or self._generator.device.type != device.type:
            self._generator = torch.Generator(device).manual_seed(self.seed)
            # A state only fits its kind of device; on another one the draws start anew from the seed.
            if self._loaded is not None and self._loaded[0] == device.type:
                self._generator.set_state(self._loaded[1])
        return self._generator

    @property
    def state(self) -> tuple[str, torch.Tensor] | None:
        return self._loaded if self._generator is None else (self._generator.device.type, self._generator.get_state())

    @state.setter
    def state(self, state: tuple[str, torch.Tensor] | None) -> None:
        self._generator, self._loaded = None, state
