"""The framework's DALI pipelines; there only with the extra `dali`."""

from typing import Any

import torch

from solo_hcsc.compat.fix import fixes

try:
    import solo.methods.dali as dali_methods
    import solo.utils.dali_dataloader as dali_pipelines
    from nvidia.dali import ops, types
    from nvidia.dali.pipeline import Pipeline
except ImportError:
    dali_methods = None
    Pipeline = object


class CpuPipeline(Pipeline):
    """A pipeline that asks for no device where there is none."""

    def __init__(self, batch_size: int, num_threads: int, device_id: int, seed: int) -> None:
        device = device_id if torch.cuda.is_available() else None
        super().__init__(batch_size=batch_size, num_threads=num_threads, device_id=device, seed=seed)


@fixes(broken=lambda: dali_methods is not None and not issubclass(dali_pipelines.PretrainPipeline, CpuPipeline))
def pipelines_without_gpu() -> None:
    """solo passes `device_id=0`; DALI 1.53 and newer want None on a machine without a GPU."""
    if dali_methods is not None:
        dali_pipelines.NormalPipeline.__bases__ = (CpuPipeline,)
        dali_pipelines.PretrainPipeline.__bases__ = (CpuPipeline,)


@fixes(broken=lambda: dali_methods is not None and "crop_size" not in vars(dali_methods.CustomNormalPipeline))
def custom_pipeline_sizes() -> None:
    """The pipeline for custom data is fixed at 224 px and ImageNet's colours, whatever the flags say.

    The class attributes are set by `solo_hcsc.data.dali_linear_class`.
    """
    if dali_methods is None:
        return

    class CustomNormalPipeline(dali_pipelines.NormalPipeline):
        crop_size = 224
        mean = (0.485, 0.456, 0.406)
        std = (0.228, 0.224, 0.225)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            size = self.crop_size
            normalise: dict[str, Any] = {
                "device": self.device,
                "dtype": types.FLOAT,
                "output_layout": types.NCHW,
                "mean": [255 * value for value in self.mean],
                "std": [255 * value for value in self.std],
            }
            cubic = {"device": self.device, "interp_type": types.INTERP_CUBIC}
            self.resize: Any
            if self.validation:
                self.resize = ops.Resize(resize_shorter=round(size * 256 / 224), **cubic)
                normalise["crop"] = (size, size)
            else:
                self.resize = ops.RandomResizedCrop(size=size, random_area=(0.08, 1.0), **cubic)
            self.cmn = ops.CropMirrorNormalize(**normalise)

    dali_pipelines.CustomNormalPipeline = CustomNormalPipeline
    dali_methods.CustomNormalPipeline = CustomNormalPipeline
