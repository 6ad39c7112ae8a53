"""Duplicates: the same file, encoded anew, resized, cropped; what is only alike is none."""

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from solo_hcsc.errors import ArgumentError
from solo_hcsc.trees.duplicates import Group, find_duplicates, overlap


def picture(seed, width=160, height=120):
    """Smooth blots of colour with details."""
    draw = np.random.default_rng(seed)
    noise = [ndimage.gaussian_filter(draw.standard_normal((height, width, 3)), (s, s, 0)) * s for s in (2, 5, 14)]
    pixels = 128 + 110 * np.tanh(sum(noise))
    return Image.fromarray(pixels.astype(np.uint8))


def write(folder, **images):
    paths = []
    for name, image in images.items():
        path = folder / name.replace("_", ".")
        image.save(path, quality=60)
        paths.append(path)
    return paths


def test_a_copy_of_a_file_is_an_exact_duplicate_and_the_first_is_kept(tmp_path):
    paths = write(tmp_path, a_png=picture(0), b_png=picture(1), c_png=picture(0))
    found = find_duplicates(paths)
    assert found.groups == (Group(keep=0, others=(2,), exact=True),)
    assert found.extra.tolist() == [2]


def test_encoded_anew_and_resized_copies_are_found_and_the_largest_is_kept(tmp_path):
    small = picture(0).resize((80, 60))
    large = picture(0).resize((320, 240))
    paths = write(tmp_path, a_png=small, b_jpg=picture(0), c_png=picture(1), d_webp=large, e_png=picture(2))
    (group,) = find_duplicates(paths).groups
    assert group == Group(keep=3, others=(0, 1), exact=False)


def test_a_copied_file_and_its_thumbnail_are_one_group(tmp_path):
    paths = write(tmp_path, a_png=picture(0), b_png=picture(0), c_png=picture(0).resize((80, 60)))
    assert find_duplicates(paths).groups == (Group(keep=0, others=(1, 2), exact=False),)


@pytest.mark.parametrize("box", [(16, 12, 160, 120), (0, 0, 128, 96), (20, 0, 150, 120)])
def test_crops_are_verified_and_others_are_not(box):
    def pixels(image):
        return np.asarray(image.resize((64, round(64 * image.height / image.width))), dtype=np.float32)

    whole, part = picture(0), picture(0).crop(box)
    assert overlap(pixels(whole), pixels(part))
    assert overlap(pixels(part), pixels(whole))
    assert not overlap(pixels(picture(1)), pixels(part))


def test_crops_are_found_by_features(tmp_path):
    paths = write(tmp_path, a_png=picture(0), b_png=picture(1), c_jpg=picture(0).crop((30, 20, 150, 110)))
    near = np.float32([[1, 0], [1, 0.1], [1, 0.05]])  # all look alike to the encoder; the pixels decide
    assert find_duplicates(paths).groups == ()
    assert find_duplicates(paths, near).groups == (Group(keep=0, others=(2,), exact=False),)


def test_the_same_picture_in_other_colours_is_no_duplicate(tmp_path):
    one = picture(0)
    other = Image.merge("RGB", one.split()[::-1])
    assert find_duplicates(write(tmp_path, a_png=one, b_png=other), np.ones((2, 2))).groups == ()


def test_plain_images_are_duplicates_where_their_colour_is_the_same(tmp_path):
    plain = {name: Image.new("RGB", (50, 50), colour) for name, colour in {"a_png": "red", "b_bmp": "red"}.items()}
    paths = write(tmp_path, **plain, c_png=Image.new("RGB", (50, 50), "blue"))
    assert [(group.keep, group.others) for group in find_duplicates(paths).groups] == [(0, (1,))]


def test_transparent_pixels_are_white(tmp_path):
    clear = picture(0).convert("RGBA")
    clear.paste((0, 0, 0, 0), (0, 0, 160, 60))
    white = picture(0)
    white.paste((255, 255, 255), (0, 0, 160, 60))
    assert len(find_duplicates(write(tmp_path, a_png=clear, b_png=white)).groups) == 1


def test_progress_counts_the_images_that_are_read(tmp_path):
    seen = []
    paths = write(tmp_path, a_png=picture(0), b_png=picture(0), c_png=picture(1))
    find_duplicates(paths, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]


def test_features_of_other_images_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="`vectors` has 3 rows and `paths` 1"):
        find_duplicates(write(tmp_path, a_png=picture(0)), np.eye(3))


def test_no_images_have_no_duplicates():
    assert find_duplicates([]).groups == ()
