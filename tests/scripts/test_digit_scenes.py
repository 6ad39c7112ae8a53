"""Pictures of digits on textures: boxes are exact, and the same seed gives the same pictures."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from PIL import Image
from tiny import ROOT

from solo_hcsc.data.pascal import read_boxes
from solo_hcsc.errors import UserError

SCRIPT = ROOT / "scripts" / "data" / "digit_scenes.py"
SPEC = spec_from_file_location("digit_scenes", SCRIPT)
digit_scenes = module_from_spec(SPEC)
SPEC.loader.exec_module(digit_scenes)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "new"
    digit_scenes.run([str(folder), "--train", "6", "--test", "3"])
    return folder


def test_boxes_are_around_bright_strokes_on_a_dark_texture(scenes):
    train, classes = read_boxes(scenes, "trainval", digit_scenes.NAMES)
    test, _ = read_boxes(scenes, "test", digit_scenes.NAMES)
    assert (len(train), len(test), len(classes)) == (6, 3, 10)
    for image in (*train, *test):
        assert 1 <= len(image.objects) <= 5
        pixels = np.asarray(Image.open(image.file).convert("L")) / 255.0
        outside = np.ones_like(pixels, dtype=bool)
        for left, top, right, bottom in image.objects.boxes.astype(int):
            box = pixels[top:bottom, left:right]
            assert box.max() > 0.6
            for edge in (box[0], box[-1], box[:, 0], box[:, -1]):  # ink reaches every side
                assert edge.max() > pixels[outside].mean() + 0.1
            outside[max(0, top - 3) : bottom + 3, max(0, left - 3) : right + 3] = False
        assert pixels[outside].max() < 0.7


def test_same_seed_makes_the_same_pictures_and_another_one_others(scenes, tmp_path):
    digit_scenes.run([str(tmp_path / "same"), "--train", "6", "--test", "3"])
    digit_scenes.run([str(tmp_path / "other"), "--train", "6", "--test", "3", "--seed", "1"])
    name = "JPEGImages/000002.jpg"
    assert (tmp_path / "same" / name).read_bytes() == (scenes / name).read_bytes()
    assert (tmp_path / "other" / name).read_bytes() != (scenes / name).read_bytes()


def test_folder_that_is_there_is_refused(scenes):
    with pytest.raises(UserError, match="is there already"):
        digit_scenes.run([str(scenes)])
    out = subprocess.run([sys.executable, SCRIPT, scenes], cwd=ROOT, capture_output=True, text=True)
    assert (out.returncode, len(out.stderr.splitlines())) == (2, 1)
