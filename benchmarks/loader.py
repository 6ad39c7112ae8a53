"""Two 224 px views of a photo with MoCo's augmentations, by CPU time: our two ways, others, and the decoder's limit.

The limit is the fastest decode alone, in full or as small as the views allow. Photos of three sizes are made of a
folder's: 12 megapixels and 500 x 375 by enlarging them and adding detail, and as they are. Each operation is then timed
alone, and compared with Pillow's. Libraries that are not installed are left out.
"""

import ctypes
import os
import random
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.nn.functional import interpolate
from torchvision import transforms
from torchvision.io import decode_image
from torchvision.transforms import functional, v2
from torchvision.transforms.v2 import functional as functional_v2

from benchmarks import measure
from solo_hcsc.data import fast_views
from solo_hcsc.data.images import decode, list_images, opened, read_image, show, upright_size
from solo_hcsc.data.loaders import seed_host
from solo_hcsc.data.views import View
from solo_hcsc.solo102 import load_methods
from solo_hcsc.solo102.datasets import Augmentation

COLOURS = {"mean": (0.485, 0.456, 0.406), "std": (0.228, 0.224, 0.225)}
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
MOCO = {**JITTER, **COLOURS, "gaussian_prob": 0.5, "min_scale": 0.2, "max_scale": 1.0, "crop_size": 224}
FACTORS = {"brightness": 1.3, "contrast": 1.3, "saturation": 1.3, "hue": 0.07}
PIL, FAST, DECODING = "ours, pil (solo-learn's transform)", "ours, fast", "decode alone"
Files = Sequence[str]


# ---- photos ----


def make_photos(originals: Path, folder: Path, args: Namespace) -> dict[str, Files]:
    """The files of each size, made of evenly spaced originals."""
    found = list_images(originals).images
    sizes = {"12 MP": (4000, 3000, 8), "500 x 375": (500, 375, 48)}
    sizes = {"12 MP": (400, 300, 2), "500 x 375": (50, 38, 2)} if args.small else sizes
    made: dict[str, Files] = {}
    draw = np.random.default_rng(args.seed)
    for name, (width, height, count) in sizes.items():
        chosen = found[:: max(1, len(found) // count)][:count]
        made[name] = [str(folder / f"{name} {number}.jpg") for number in range(len(chosen))]
        for original, file in zip(chosen, made[name], strict=True):
            enlarged(read_image(original), width, height, draw).save(file, quality=90)
    return made | {"as they are": chosen}


def enlarged(photo: Image.Image, width: int, height: int, draw: np.random.Generator) -> Image.Image:
    """A photo of another size, with detail of one pixel and, in large ones, of several."""
    pixels = np.asarray(functional.center_crop(functional.resize(photo, max(width, height)), [height, width]), float)
    for side in (1, 2, 4, 8) if width > 1000 else (1,):
        grain = draw.normal(0, 3, (height // side + 1, width // side + 1)).repeat(side, 0).repeat(side, 1)
        pixels = pixels + grain[:height, :width, None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


# ---- ways from a file to its views ----


def scaled_pillow(step: transforms.Compose) -> Callable[[str], list[torch.Tensor]]:
    """Boxes first and the scaled decode, as our fast way, then Pillow."""
    cut, *rest = step.transforms
    remaining = transforms.Compose(rest)

    def views(path: str) -> list[torch.Tensor]:
        with opened(path) as file:
            height, width = upright_size(file)
            empty = torch.empty((1, height, width), device="meta")
            drawn = [cut.get_params(empty, list(cut.scale), list(cut.ratio)) for _ in range(2)]
            image = decode(file, min(min(box[2:]) for box in drawn) / cut.size[0])
        ratio = image.width / width
        return [
            remaining(image.resize(cut.size, Image.Resampling.BICUBIC, _corners(box, ratio, image), 2)) for box in drawn
        ]

    return views


def _corners(box: tuple[int, int, int, int], ratio: float, image: Image.Image) -> tuple[float, float, float, float]:
    top, left, height, width = (side * ratio for side in box)
    return left, top, min(left + width, image.width), min(top + height, image.height)


def tensors_v2() -> Callable[[str], list[torch.Tensor]]:
    views = v2.Compose(
        [
            v2.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomApply([v2.ColorJitter(**JITTER)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], p=0.5),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(**COLOURS),
        ]
    )

    def both(path: str) -> list[torch.Tensor]:
        image = decode_image(path, mode="RGB")
        return [views(image), views(image)]

    return both


def dali(files: Files, augmentation: Augmentation) -> Callable[[], Any]:
    """DALI on the CPU with one thread, which goes on where it was and works ahead."""
    from solo_hcsc.solo102.dali import Augmented, Decoding

    batch = min(16, len(files))
    numbers = list(range(len(files)))
    pipeline = Augmented(list(files), numbers, augmentation, Decoding("cpu", batch, 1, 0), 0)
    pipeline.build()
    return lambda: [pipeline.run() for _ in range(len(files) // batch)]


def scaled_decode(path: str, fast: fast_views.FastViews) -> Image.Image:
    """What the fast way decodes, and nothing else."""
    with opened(path) as file:
        return decode(file, min(box.shrink for box, _ in fast._draw(*upright_size(file))))


def each(way: Callable[[str], Any], files: Files) -> None:
    for number, file in enumerate(files):
        seed_host(0, 0, number)  # the same boxes for all
        way(file)


def ways(files: Files) -> dict[str, Callable[[], Any]]:
    """Every way over all files."""
    augmentation, quick = (Augmentation("custom", (MOCO,), (2,), (0.0,), is_fast) for is_fast in (False, True))
    pil, fast = augmentation.transform(), quick.transform()
    centre = View(224, **COLOURS).transform
    of_file: dict[str, Callable[[str], Any]] = {
        PIL: partial(show, transform=pil),
        FAST: partial(show, transform=fast),
        "boxes first, scaled decode, then Pillow": scaled_pillow(fast.made_by[0]),
        "torchvision v2 on tensors": tensors_v2(),
        "the fast way's decode alone": partial(scaled_decode, fast=fast),
        "decode alone at full size, Pillow": read_image,
        "decode alone at full size, OpenCV": cv2.imread,
        "one centre crop, pil": partial(show, transform=centre),
        "one centre crop, fast": partial(show, transform=fast_views.FastView(centre)),
    }
    return {name: partial(each, way, files) for name, way in of_file.items()}


def timed(name: str, files: Files, memory: dict[str, int], args: Namespace) -> list[dict[str, Any]]:
    seconds = measure.side_by_side(ways(files), args.repeats, clock=time.process_time)
    if find_spec("nvidia") and find_spec("nvidia.dali"):  # by itself, because its threads work on when it returns
        way = dali(files, Augmentation("custom", (MOCO,), (2,), (0.0,)))
        seconds |= measure.side_by_side({"DALI on the CPU": way}, args.repeats, clock=time.process_time)
    rows = []
    limit = min(statistics.median(taken) for way, taken in seconds.items() if DECODING in way)
    for way, taken in seconds.items():
        median = statistics.median(taken)
        rate, share, grown = len(files) / median, limit / median, memory.get(way)
        figures = {"images_per_second": rate, "of_limit": share, "grown_bytes": grown}
        rows.append(measure.row(way, taken, seconds[PIL], photos=name, **figures))
    return rows


def grows_by(work: Callable[[], Any]) -> int:
    """Bytes of its own that a process like a loader's worker has at most in `work`, beyond those it began with."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        ctypes.CDLL(None).malloc_trim(0)  # a worker inherits no memory that is free to use
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS") - _status("RssFile")  # libraries' code is in memory once for all processes
        work()
        os.write(writing, str(_status("VmHWM") - _status("RssFile") - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        return int(answer.read())


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


# ---- each operation alone ----


def operations(photo: Image.Image) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(operation, library, what does it); Pillow comes first."""
    side = 224
    part = np.ascontiguousarray(np.asarray(photo))
    planar = torch.from_numpy(part.copy()).permute(2, 0, 1)
    crop = photo.resize((side, side), Image.Resampling.BICUBIC)
    pixels = np.asarray(crop).copy()
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    size = f"resize {photo.width} px to {side}"
    yield size, "Pillow", lambda: photo.resize((side, side), Image.Resampling.BICUBIC)
    yield size, "torch, 8 bits", lambda: interpolate(planar[None], size=side, mode="bicubic", antialias=True)[0]
    for name in ("AREA", "LINEAR", "CUBIC"):
        kind = getattr(cv2, f"INTER_{name}")
        yield size, f"OpenCV, INTER_{name}", partial(cv2.resize, part, (side, side), interpolation=kind)
    albumentations = bool(find_spec("albumentations"))
    for number, (name, factor) in enumerate(
        {"brightness": 1.3, "contrast": 1.3, "saturation": 1.3, "hue": 0.07}.items()
    ):
        yield name, "Pillow", partial(getattr(functional, f"adjust_{name}"), crop, factor)
        yield name, "OpenCV (ours)", partial(fast_views.JITTER[number], pixels, factor)
        yield name, "torchvision v2", partial(getattr(functional_v2, f"adjust_{name}"), tensor, factor)
        if albumentations:
            from albumentations.augmentations.pixel import functional as albumentation

            adjust = getattr(albumentation, f"adjust_{name}_torchvision")
            yield name, "albumentations", partial(adjust, pixels, factor)
    for sigma in (0.5, 1.0, 2.0):
        name, kernel = f"blur, sigma {sigma}", [round(6 * sigma) | 1] * 2
        yield name, "Pillow", partial(crop.filter, ImageFilter.GaussianBlur(sigma))
        yield name, "OpenCV (ours)", partial(fast_views.blur, pixels, sigma)
        yield name, "torchvision v2", partial(functional_v2.gaussian_blur, tensor, kernel, [sigma, sigma])
    yield "grey", "Pillow", partial(functional.to_grayscale, crop, 3)
    yield "grey", "OpenCV (ours)", partial(fast_views.grey, pixels)
    yield "solarise", "Pillow", partial(functional.solarize, crop, 128)
    yield "solarise", "OpenCV (ours)", partial(fast_views.solarise, pixels)
    if find_spec("pyvips"):
        import pyvips

        whole, cut = pyvips.Image.new_from_array(part), pyvips.Image.new_from_array(pixels)
        ratio = side / photo.width, side / photo.height
        yield size, "libvips", lambda: whole.resize(ratio[0], vscale=ratio[1], kernel="cubic").numpy()
        for sigma in (0.5, 1.0, 2.0):
            yield f"blur, sigma {sigma}", "libvips", lambda s=sigma: cut.gaussblur(s).numpy()  # type: ignore[misc]


def compared(photo: Image.Image, args: Namespace) -> list[dict[str, Any]]:
    found = list(operations(photo))
    made = {(operation, library): way for operation, library, way in found}
    often: dict[Any, Callable[[], Any]] = {key: partial(_often, way) for key, way in made.items()}
    seconds = measure.side_by_side(often, args.repeats, clock=time.process_time)
    return [
        {
            "operation": operation,
            "library": library,
            "milliseconds": 1000 / OFTEN * statistics.median(seconds[operation, library]),  # type: ignore[index]
            "psnr": psnr(_pixels(way()), _pixels(made[operation, "Pillow"]())),
        }
        for (operation, library), way in sorted(made.items(), key=lambda item: item[0][0])
    ]


OFTEN = 20


def _often(way: Callable[[], Any]) -> None:
    for _ in range(OFTEN):
        way()


def _pixels(image: Any) -> np.ndarray:
    """(H, W, 3) of whatever a library returns."""
    if isinstance(image, torch.Tensor):
        image = image.permute(1, 2, 0)
    return np.asarray(image).astype(float)


def psnr(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """Decibels; None for equal pixels."""
    error = float(np.mean((ours - theirs) ** 2))
    return 10 * np.log10(255**2 / error) if error else None


def main() -> None:
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--data_dir", type=Path, required=True, help="a folder of photos, at least 48")
    parser.add_argument("--record", default="loader", help="its name")
    args = parser.parse_args()
    args.threads = [1]
    load_methods()
    random.seed(args.seed)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, measure.threads(1):
        photos = make_photos(args.data_dir, Path(folder), args)
        made = {name: ways(files) for name, files in photos.items()}
        memory = {name: {way: grows_by(each[way]) for way in (PIL, FAST)} for name, each in made.items()}
        for name, files in photos.items():
            rows += timed(name, files, memory[name], args)
        middling = read_image(photos["500 x 375"][0])
        alone = compared(middling.crop((0, 0, min(middling.size), min(middling.size))), args)
    table = [
        (
            r["photos"],
            r["way"],
            r["images_per_second"],
            1 / r["ratio"],
            r["of_limit"],
            r["grown_bytes"] and r["grown_bytes"] / 2**20,
        )
        for r in rows
    ]
    measure.show(["photos", "way", "images per CPU second", "x ours, pil", "of the limit", "MB"], table)
    cells = [(r["operation"], r["library"], r["milliseconds"], r["psnr"] or "equal") for r in alone]
    measure.show(["operation", "library", "ms", "PSNR"], cells)
    args.data_dir = args.data_dir.name
    measure.write("loader", args, rows, args.record, operations=alone)


if __name__ == "__main__":
    main()
