"""Random numbers that a checkpoint can go on with."""

import torch


class SeededNumbers:
    """The selection's own random numbers, from the run's seed on whatever device asks for them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generator: torch.Generator | None = None
        self._loaded: tuple[str, torch.Tensor] | None = None  # device and state, from a checkpoint

    def on(self, device: torch.device) -> torch.Generator:
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
