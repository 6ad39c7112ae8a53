"""solo-learn's linear model, with the warm-up that its releases from 1.0.4 on let a user choose."""

from typing import Any

import solo.methods.linear

from solo_hcsc.solo102.repairs.stand_ins import LinearWarmupCosineAnnealingLR


class LinearModel(solo.methods.linear.LinearModel):
    """With `scheduler="warmup_cosine"`, follows `warmup_epochs`, `warmup_start_lr` and `min_lr`."""

    def configure_optimizers(self) -> Any:
        made = solo.methods.linear.LinearModel.configure_optimizers(self)  # `self` may only look like this class
        if self.scheduler != "warmup_cosine":
            return made
        (optimizer,), _ = made
        chosen = self.extra_args
        scheduler = LinearWarmupCosineAnnealingLR(
            optimizer, chosen["warmup_epochs"], self.max_epochs, chosen["warmup_start_lr"], chosen["min_lr"]
        )
        return [optimizer], [scheduler]
