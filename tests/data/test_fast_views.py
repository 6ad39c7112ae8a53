"""The fast way's views are those of the transform that they stand for: the same draws, nearly the same pixels."""

import io
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from tiny import SMALL, make_images, run_here, where
from torchvision import transforms
from torchvision.transforms import functional

from solo_hcsc import extras
from solo_hcsc.data import fast_views
from solo_hcsc.data.fast_views import FastView, FastViews
from solo_hcsc.data.images import UnreadableImage, read_image, show
from solo_hcsc.data.loaders import Loading, seed_host
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.solo102.datasets import Augmentation, pretraining_set

HALVES = (0.5, 0.5, 0.5)
FLAGS = {
    **{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "color_jitter_prob": 0.8},
    **{"gray_scale_prob": 0.2, "gaussian_prob": 0.5, "solarization_prob": 0.3, "min_scale": 0.2, "crop_size": 64},
}
NOTHING = dict.fromkeys(["brightness", "contrast", "saturation", "hue", "gray_scale_prob", "gaussian_prob"], 0.0)
SMALL_CROPS = FLAGS | {"crop_size": 32, "min_scale": 0.05, "max_scale": 0.2}


def photo(width: int, height: int, seed: int = 0, grain: float = 2) -> Image.Image:
    """Smooth colours with a little grain."""
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 255, (6, 8, 3), dtype=np.uint8))
    large = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), float)
    return Image.fromarray((large + draw.normal(0, grain, large.shape)).clip(0, 255).astype(np.uint8))


def psnr(ours, theirs) -> float:
    """Decibels between images of 8 bits, or of numbers from 0 to 1."""
    ours, theirs = (np.asarray(image, float) * (255 if torch.is_tensor(image) else 1) for image in (ours, theirs))
    assert ours.shape == theirs.shape
    return 10 * np.log10(255**2 / max(np.mean((ours - theirs) ** 2), 1e-9))


def grey_levels(view: torch.Tensor, mean=HALVES, std=HALVES) -> torch.Tensor:
    return view * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]


def both(crops=(2,), pipelines=(FLAGS,), equalised=()) -> tuple:
    """solo-learn's transform, and the fast one of the same flags."""
    pipelines = tuple({"mean": HALVES, "std": HALVES, **one} for one in pipelines)
    return tuple(Augmentation("custom", pipelines, crops, equalised, fast).transform() for fast in (False, True))


def seeded(make, seed: int):
    """What `make` returns, and what the generators would give next."""
    seed_host(seed)
    return make(), (torch.rand(1).item(), random.random(), np.random.random())


# ---- what is drawn ----


def test_seed_means_the_same_views_as_with_solo_learn():
    pil, fast = both((2, 3), (FLAGS, SMALL_CROPS), (0.2, 0.2))
    image, found = photo(160, 130), []
    for seed in range(60):
        (theirs, next_of_theirs), (ours, next_of_ours) = (seeded(lambda t=t: t(image), seed) for t in (pil, fast))
        assert next_of_ours == next_of_theirs
        assert [view.shape for view in ours] == [view.shape for view in theirs]
        found += [psnr(grey_levels(a), grey_levels(b)) for a, b in zip(ours, theirs, strict=True)]
    assert np.median(found) > 45
    # Solarisation and equalisation may throw levels far apart that differ by one.
    assert np.quantile(found, 0.05) > 28


def test_pixels_of_many_views_have_solo_learns_mean_and_variance():
    pil, fast = both((1,), (FLAGS | {"solarization_prob": 0.1},))
    image, sums = photo(160, 130, seed=1), []
    for transform in (pil, fast):
        seed_host(7)
        views = torch.stack([transform(image)[0] for _ in range(150)])
        sums.append([views.mean((0, 2, 3)), views.var((0, 2, 3)), views.var(0).mean()])
    for ours, theirs in zip(*sums, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0.004)


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("gray_scale_prob", {fast_views.grey}),
        ("horizontal_flip_prob", {fast_views.flip}),
        ("gaussian_prob", {fast_views.blur}),
        ("solarization_prob", {fast_views.solarise}),
        ("color_jitter_prob", set(fast_views.JITTER)),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_each_change_is_as_frequent_as_its_flag_says(flag, changes, share):
    _, fast = both((1,), (FLAGS | {flag: share},))
    seed_host(3)
    drawn = [{getattr(one, "func", one) for one in fast.pipelines[0].draw()} for _ in range(800)]
    assert np.mean([changes <= one for one in drawn]) == pytest.approx(
        share, abs=4 * np.sqrt(share * (1 - share) / 800)
    )


def test_jitter_and_blur_are_drawn_from_the_ranges_of_the_flags():
    _, fast = both((1,), (FLAGS | {"color_jitter_prob": 1, "gaussian_prob": 1},))
    seed_host(4)
    drawn = [one for _ in range(400) for one in fast.pipelines[0].draw() if hasattr(one, "keywords")]
    ranges = {"brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "saturation": (0.6, 1.4), "hue": (-0.1, 0.1)}
    for name, (low, high) in {**ranges, "blur": (0.1, 2.0)}.items():
        values = [next(iter(one.keywords.values())) for one in drawn if one.func.__name__ == name]
        assert len(values) == 400
        assert low <= min(values) < low + 0.05 * (high - low) < high - 0.05 * (high - low) < max(values) <= high
        assert np.mean(values) == pytest.approx((low + high) / 2, abs=4 * (high - low) / np.sqrt(12 * 400))


# ---- each operation alone, beside Pillow's ----


def pillow_blur(image, sigma):
    return image.filter(ImageFilter.GaussianBlur(sigma))


ALONE = [
    *((fast_views.brightness, functional.adjust_brightness, factor, 70) for factor in (0.6, 1, 1.37)),
    *((fast_views.contrast, functional.adjust_contrast, factor, 50) for factor in (0.6, 1, 1.37)),
    *((fast_views.saturation, functional.adjust_saturation, factor, 50) for factor in (0.6, 1, 1.37)),
    *((fast_views.hue, functional.adjust_hue, factor, 38) for factor in (-0.1, 0.03, 0.1, 0.5)),
    *((fast_views.blur, pillow_blur, sigma, 49) for sigma in (0.1, 0.5, 1.0, 2.0)),
    (fast_views.grey, lambda image: functional.to_grayscale(image, 3), None, 50),
    (fast_views.flip, functional.hflip, None, 120),
    (fast_views.solarise, lambda image: functional.solarize(image, 128), None, 120),
    (fast_views.equalise, functional.equalize, None, 120),
]


@pytest.mark.parametrize(("ours", "pillows", "value", "least"), ALONE)
def test_operation_gives_pillows_pixels(ours, pillows, value, least):
    image = photo(96, 80, seed=2, grain=20)  # which shows a sigma that is a tenth off
    values = () if value is None else (value,)
    before = np.array(image)
    assert psnr(ours(before, *values), pillows(image, *values)) >= least
    np.testing.assert_array_equal(before, np.asarray(image))  # views share their image


@pytest.mark.parametrize("size", [(300, 200), (90, 61), (40, 30), (1, 1)])
def test_crop_is_resized_within_two_levels_of_pillow(size):
    image = photo(304, 208).crop((0, 0, *size))
    crop = transforms.Compose(
        [transforms.RandomResizedCrop(64, interpolation=transforms.InterpolationMode.BICUBIC), transforms.ToTensor()]
    )
    for seed in range(10):
        (theirs, _), (ours, _) = (seeded(lambda t=t: t(image), seed) for t in (crop, FastView(crop)))
        assert (ours - theirs).abs().max() <= 2.01 / 255
        assert (ours - theirs).abs().mean() <= 0.2 / 255


def test_numbers_of_levels_are_those_of_the_transform_to_the_bit():
    whole = [transforms.Resize([80, 96]), transforms.ToTensor(), transforms.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))]
    transform, image = transforms.Compose(whole), photo(96, 80)
    torch.testing.assert_close(FastView(transform)(image), transform(image), rtol=0, atol=0)


def test_unknown_step_is_refused():
    steps = [transforms.RandomResizedCrop(8), transforms.RandomPosterize(4), transforms.ToTensor()]
    with pytest.raises(ValueError, match="RandomPosterize"):
        FastView(transforms.Compose(steps))
    with pytest.raises(ValueError, match="begins with"):
        FastView(transforms.Compose(steps[1:]))
    with pytest.raises(ValueError, match="ends with ToTensor"):
        FastView(transforms.Compose([*steps[:1], transforms.CenterCrop(8)]))


# ---- files ----


def evaluated(crop_size: int = 32) -> tuple:
    """The transforms of an evaluation: Pillow's, and the fast one."""
    settings = ("custom", None, None, None, (crop_size,), HALVES, HALVES)
    return tuple(evaluation_transforms(ImageSource(*settings, image_backend=way))[1] for way in ("pil", "fast"))


def decoded_sizes(monkeypatch) -> list:
    sizes = []

    def decode(file, shrink):
        image = original(file, shrink)
        sizes.append(image.size)
        return image

    original = fast_views.decode
    monkeypatch.setattr(fast_views, "decode", decode)
    return sizes


def test_jpeg_is_decoded_once_and_as_small_as_its_views_allow(monkeypatch, tmp_path):
    photo(1280, 960).save(tmp_path / "x.jpg", quality=95)
    sizes = decoded_sizes(monkeypatch)
    pil, fast = both((1, 1), (FLAGS | NOTHING, SMALL_CROPS | NOTHING | {"min_scale": 0.15}))
    for seed in range(12):
        (theirs, _), (ours, _) = (seeded(lambda t=t: show(str(tmp_path / "x.jpg"), t), seed) for t in (pil, fast))
        assert min(psnr(grey_levels(a), grey_levels(b)) for a, b in zip(ours, theirs, strict=True)) > 32
    assert len(sizes) == 12
    assert set(sizes) <= {(640, 480), (320, 240), (160, 120)}
    assert (320, 240) in sizes


def test_view_of_little_of_the_image_has_it_decoded_in_full(monkeypatch, tmp_path):
    photo(320, 240).save(tmp_path / "x.jpg")
    sizes = decoded_sizes(monkeypatch)
    # The second view needs every pixel, whatever the first one needs.
    _, fast = both((1, 1), (FLAGS | {"min_scale": 1.0}, FLAGS | {"min_scale": 0.04, "max_scale": 0.05}))
    show(str(tmp_path / "x.jpg"), fast)
    assert sizes == [(320, 240)]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_photograph_that_is_decoded_small_stands_upright(ending, orientation, tmp_path):
    image = photo(640, 448)
    exif = image.getexif()
    exif[0x0112] = orientation
    file = str(tmp_path / f"x.{ending}")
    image.save(file, exif=exif)
    pil, fast = evaluated()
    assert psnr(grey_levels(show(file, fast)), grey_levels(show(file, pil))) > 38
    cut = transforms.Compose([transforms.RandomResizedCrop(32, (0.2, 0.5)), transforms.ToTensor()])
    (theirs, _), (ours, _) = (seeded(lambda t=t: show(file, t), 5) for t in (cut, FastView(cut)))
    assert psnr(ours, theirs) > 32


def odd_files(folder) -> dict[str, Image.Image]:
    image = photo(320, 256)
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, 320).astype(np.uint8), (256, 1)))
    transparent = image.copy()
    transparent.putalpha(alpha)
    found = {
        "cmyk.jpg": image.convert("CMYK"),
        "grey.jpg": image.convert("L"),
        "transparent.png": transparent,
        "transparent.webp": transparent,
        "palette.gif": image.quantize(64),
        "deep.png": Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257),
        "plain.bmp": image,
        "icon.ico": transparent.resize((128, 128)),
        "tall.jpg": image.resize((3, 320)),
        "tiny.jpg": image.resize((1, 1)),
    }
    for name, one in found.items():
        one.save(folder / name)
    image.save(folder / "two.mpo", save_all=True, append_images=[image.rotate(180)])
    return {**found, "two.mpo": image}


def test_every_kind_of_file_is_seen_as_pillow_reads_it(tmp_path):
    pil, fast = evaluated()
    found = {
        name: psnr(*(grey_levels(show(str(tmp_path / name), t)) for t in (fast, pil))) for name in odd_files(tmp_path)
    }
    assert {name: value for name, value in found.items() if value < 36} == {}


@pytest.mark.parametrize("broken", [b"", b"no image", None])
def test_unreadable_file_is_named_as_by_pillow(broken, tmp_path):
    whole = io.BytesIO()
    photo(640, 480).save(whole, "JPEG")
    (tmp_path / "x.jpg").write_bytes(whole.getvalue()[:-2000] if broken is None else broken)
    said = []
    for transform in evaluated():
        with pytest.raises(UnreadableImage) as error:
            show(str(tmp_path / "x.jpg"), transform)
        said.append((str(error.value), error.value.path))
    assert said[0] == said[1]


def test_large_png_is_reduced_before_it_is_resized(tmp_path):
    photo(1280, 960).save(tmp_path / "x.png", compress_level=1)
    pil, fast = evaluated()
    assert psnr(grey_levels(show(str(tmp_path / "x.png"), fast)), grey_levels(show(str(tmp_path / "x.png"), pil))) > 38


def test_pillow_backend_reads_in_full(tmp_path):
    photo(640, 480).save(tmp_path / "x.jpg")
    pil, _ = evaluated()
    expected = pil(Image.open(tmp_path / "x.jpg").convert("RGB"))
    torch.testing.assert_close(show(str(tmp_path / "x.jpg"), pil), expected, rtol=0, atol=0)
    assert read_image(str(tmp_path / "x.jpg")).size == (640, 480)


# ---- runs ----


def fast_source(folder) -> ImageSource:
    settings = ("custom", folder, "train", None, (32,), HALVES, HALVES)
    return ImageSource(*settings, image_backend="fast")


def test_batches_are_the_same_with_any_workers_and_after_a_resume(tmp_path):
    make_images(tmp_path / "train", classes=2, per_class=8)
    _, transform = both((2,), (FLAGS | {"crop_size": 32},))
    dataset = pretraining_set(fast_source(tmp_path), transform, 1, 0)

    def batches(workers: int, done: int) -> list:
        loader = Loading(4, workers).repeatable(dataset, 5, shards=False)
        loader.load_state_dict({"done": done})
        return [(index.tolist(), torch.stack(views)) for index, views, _ in loader]

    whole = batches(0, 0)
    assert len(whole) == 4
    for workers, done in ((2, 0), (2, 3)):
        for (index, views), (expected, theirs) in zip(batches(workers, done), whole[done:], strict=True):
            assert index == expected
            torch.testing.assert_close(views, theirs, rtol=0, atol=0)


def test_transform_can_be_sent_to_another_process():
    _, fast = both()
    again, image = pickle.loads(pickle.dumps(fast)), photo(80, 64)
    (ours, _), (theirs, _) = (seeded(lambda t=t: t(image), 0) for t in (again, fast))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert "RandomResizedCrop" in repr(fast)


def test_run_and_its_evaluations_take_the_fast_way(tmp_path, monkeypatch, capsys):
    make_images(tmp_path / "train", classes=2, per_class=8)
    used = []
    make = FastViews._make
    monkeypatch.setattr(
        FastViews, "_make", lambda self, *args: (used.append(len(self.pipelines)), make(self, *args))[1]
    )
    method = ["--method", "hcsc", "--queue_size", "16", "--num_prototypes", "2", "--min_cluster_size", "2"]
    method += ["--max_epochs", "2"]
    fast = ["--image_backend", "fast"]
    val = ["--val_dir", "train"]
    run_here("pretrain", *where(tmp_path), *val, *SMALL, *method, *fast)
    assert used.count(2) == 2 * 16  # two views of each image in each epoch
    assert used.count(1) >= 2 * 16  # validation and clustering
    embedded = {}
    for backend in ("pil", "fast"):
        used.clear()
        out = tmp_path / backend
        flags = ["--accelerator", "cpu", "--num_workers", "0", "--image_backend", backend]
        run_here("embed", tmp_path / "runs", "--out", out, *flags)
        embedded[backend] = np.load(next(out.glob("*.npy")))
        assert len(used) == (16 if backend == "fast" else 0)
    a, b = embedded["pil"], embedded["fast"]
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert cosine.min() > 0.999
    used.clear()
    run_here("knn", "--pretrained_feature_extractor", tmp_path / "runs", "--num_workers", 0, "--k", 1, *fast)
    assert used == [1] * 32  # the bank and the queries


def test_fast_way_without_opencv_or_with_dali_is_refused(tmp_path, refused, monkeypatch):
    make_images(tmp_path / "train", classes=2, per_class=2)
    flags = [*where(tmp_path), *SMALL, "--method", "simclr", "--image_backend", "fast"]
    assert "--dali decodes by itself" in refused("pretrain", *flags, "--dali")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert "pip install 'solo_hcsc[fast]'" in refused("pretrain", *flags)
    assert not (tmp_path / "runs").exists()
