"""A cache of features: what it spares, what it does not mistake, and what it stands."""

import os
import time

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import make_images, run_here

import solo_hcsc
from solo_hcsc.encoders import cache as caches
from solo_hcsc.encoders.cache import Store, Writer, make_room, stamp_of
from solo_hcsc.encoders.embedding import Embedder
from solo_hcsc.encoders.loading import Encoder


@pytest.fixture
def photos(tmp_path):
    return make_images(tmp_path / "photos", classes=2, per_class=5)


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    return Encoder.timm("resnet10t", crop_size=32, pretrained=False)


@pytest.fixture
def passed(monkeypatch):
    """The images that went through the encoder, by their number in the listing; a list for each pass."""
    seen = []
    compute = Embedder._computed

    def watched(self, numbers, *rest):
        seen.append(numbers.tolist())
        yield from compute(self, numbers, *rest)

    monkeypatch.setattr(Embedder, "_computed", watched)
    return seen


def equal(one, other):
    return (one.paths, one.names) == (other.paths, other.names) and np.array_equal(one.vectors, other.vectors)


def test_only_new_and_changed_images_are_embedded(encoder, photos, passed, tmp_path):
    cache = tmp_path / "cache"
    first = solo_hcsc.embed(encoder, photos, cache=cache, batch_size=4)
    assert equal(first, solo_hcsc.embed(encoder, photos, batch_size=4))
    assert equal(first, solo_hcsc.embed(encoder, photos, cache=cache))
    assert passed == [list(range(10)), list(range(10))]
    Image.new("RGB", (40, 40), "red").save(photos / "class 0" / "3.png")
    Image.new("RGB", (40, 40), "blue").save(photos / "class 1" / "new.png")
    (photos / "class 0" / "1.png").unlink()
    later = solo_hcsc.embed(encoder, photos, cache=cache)
    assert [later.paths[row] for row in passed[2]] == ["class 0/3.png", "class 1/new.png"]
    passed.clear()
    fresh = solo_hcsc.embed(encoder, photos)
    assert later.paths == fresh.paths
    np.testing.assert_allclose(later.vectors, fresh.vectors, rtol=1e-4, atol=1e-5)  # other batches, other sums


def test_another_view_or_other_weights_share_nothing(encoder, photos, passed, tmp_path):
    cache = tmp_path / "cache"
    solo_hcsc.embed(encoder, photos, cache=cache)
    torch.manual_seed(1)
    other = Encoder.timm("resnet10t", crop_size=32, pretrained=False)
    larger = Encoder.timm("resnet10t", crop_size=48, pretrained=False)
    larger.module.load_state_dict(encoder.module.state_dict())
    for one in (other, larger):
        assert equal(solo_hcsc.embed(one, photos, cache=cache), solo_hcsc.embed(one, photos))
    assert passed == [list(range(10))] * 5


def test_weights_that_are_changed_in_memory_are_other_weights(photos, passed, tmp_path):
    torch.manual_seed(2)
    encoder = Encoder.timm("resnet10t", crop_size=32, pretrained=False)
    before = solo_hcsc.embed(encoder, photos, cache=tmp_path / "cache")
    with torch.no_grad():
        encoder.module.conv1[0].weight.mul_(2)
    after = solo_hcsc.embed(encoder, photos, cache=tmp_path / "cache")
    assert len(passed) == 2
    assert not equal(before, after)


def test_listed_files_and_a_part_of_them(encoder, photos, passed, tmp_path):
    files = sorted(map(str, photos.rglob("*.png")))
    every = solo_hcsc.embed(encoder, files, cache=tmp_path / "cache")
    part = solo_hcsc.embed(encoder, files[::-3], cache=tmp_path / "cache")
    assert passed == [list(range(10))]
    assert np.array_equal(part.vectors, every.vectors[::-3])


def damage_a_byte(file):
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "a byte": damage_a_byte,
    "half of it": lambda file: os.truncate(file, file.stat().st_size // 2),
    "nothing left": lambda file: os.truncate(file, 0),
    "another file": lambda file: file.write_bytes(b"\xff" * 100),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_block_is_told_and_made_anew(damage, encoder, photos, passed, tmp_path, told, capsys):
    cache = tmp_path / "cache"
    before = solo_hcsc.embed(encoder, photos, cache=cache)
    (block,) = cache.rglob("block-*")
    DAMAGES[damage](block)
    assert equal(before, solo_hcsc.embed(encoder, photos, cache=cache))
    assert "1 broken or foreign files in the cache" in capsys.readouterr().err
    assert equal(before, solo_hcsc.embed(encoder, photos, cache=cache))
    assert len(passed) == 2


def test_block_of_another_encoder_is_not_taken(encoder, photos, tmp_path):
    cache = tmp_path / "cache"
    torch.manual_seed(3)
    solo_hcsc.embed(Encoder.timm("resnet10t", crop_size=32, pretrained=False), photos, cache=cache)
    (foreign,) = cache.rglob("block-*")
    before = solo_hcsc.embed(encoder, photos, cache=cache)
    (own,) = set(cache.rglob("block-*")) - {foreign}
    own.write_bytes(foreign.read_bytes())
    assert equal(before, solo_hcsc.embed(encoder, photos, cache=cache))


def test_what_was_done_before_a_stop_is_kept(encoder, photos, passed, tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "_ROWS_AT_MOST", 4)
    (photos / "class 1" / "2.png").write_bytes(b"no image")
    with pytest.raises(solo_hcsc.errors.UserError, match=r"class 1/2\.png"):
        solo_hcsc.embed(encoder, photos, cache=tmp_path / "cache", batch_size=2)
    found = solo_hcsc.embed(encoder, photos, cache=tmp_path / "cache", batch_size=2, skip_unreadable=True)
    assert passed[1] == [6, 7, 8, 9]
    assert [one.index for one in found.skipped] == [7]
    again = solo_hcsc.embed(encoder, photos, cache=tmp_path / "cache", batch_size=2, skip_unreadable=True)
    assert (passed[2], [one.index for one in again.skipped]) == ([7], [7])
    fresh = solo_hcsc.embed(encoder, photos, batch_size=2, skip_unreadable=True)
    assert equal(found, fresh)
    assert equal(again, fresh)


def test_clusters_of_a_run_come_from_the_cache_too(hcsc_run, images, tmp_path, passed):
    given = {"cache": tmp_path / "cache", "accelerator": "cpu", "batch_size": 8}
    first, again = (solo_hcsc.embed(hcsc_run, images / "train", **given) for _ in range(2))
    assert passed == [list(range(36))]
    assert np.array_equal(first.clusters, again.clusters)
    assert equal(first, again)
    plain = solo_hcsc.embed(hcsc_run, images / "train", accelerator="cpu", batch_size=8)
    assert np.array_equal(plain.clusters, first.clusters)
    np.testing.assert_allclose(plain.similarities, first.similarities, rtol=1e-5)


def test_tree_of_the_same_encoder_takes_one_pass(hcsc_run, images):
    run = solo_hcsc.open_run(hcsc_run)
    both = run.embed(images / "train", accelerator="cpu", batch_size=8)
    run.tree.side[0].load_state_dict(run.encoder_for(32).module.state_dict())
    passes = []
    for encoder in (run.encoder_for(32).module, run.tree.side[0]):
        encoder.register_forward_hook(lambda *_: passes.append(1))
    shared = run.embed(images / "train", accelerator="cpu", batch_size=8)
    assert len(passes) == 5  # batches
    assert np.array_equal(shared.vectors, both.vectors)


def test_commands_share_one_cache(untrained, photos, passed, tmp_path, capsys):
    flags = [untrained, "--data_dir", photos, "--crop_size", 32, "--num_workers", 0, "--accelerator", "cpu"]
    flags += ["--cache", tmp_path / "cache"]
    run_here("pick", *flags, "--budget", 3, "--out", tmp_path / "labels.csv")
    assert "embedded before" not in capsys.readouterr().out
    run_here("embed", *flags, "--out", tmp_path / "table")
    assert f"10 of 10 images are as they were embedded before ({tmp_path / 'cache'})" in capsys.readouterr().out
    run_here("embed", *flags[:-2], "--no_cache", "--out", tmp_path / "table")
    assert passed == [list(range(10))] * 2


def test_cache_that_cannot_be_is_refused(refused, untrained, photos, tmp_path):
    (tmp_path / "file").touch()
    words = ["embed", untrained, "--data_dir", photos, "--out", tmp_path / "out", "--cache", tmp_path / "file"]
    assert "--cache" in (line := refused(*words))
    assert "is a file; give a folder" in line
    assert "--no_cache keeps nothing in --cache" in refused(*words, "--no_cache")


def test_default_place_is_bounded(tmp_path, monkeypatch):
    for number, name in enumerate("abcd"):
        store = Store(tmp_path, name, "photos")
        store.add(["a.jpg"], [stamp_of(__file__)], np.zeros((1, 1000)))
        os.utime(store.folder, (time.time() - 10**6 + number,) * 2)
    (tmp_path / "somebody's").mkdir()
    os.utime(store.folder)  # in use now
    make_room(tmp_path, 9000)
    assert len(list(tmp_path.iterdir())) == 3
    assert store.folder.exists()
    make_room(tmp_path, 0)
    assert sorted(tmp_path.iterdir()) == sorted([store.folder, tmp_path / "somebody's"])


def test_writer_leaves_no_more_than_a_block_to_lose(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "_SECONDS_AT_MOST", 0.0)
    store = Store(tmp_path, "encoder", "photos")
    writer = Writer(store)
    for number in range(3):
        writer.add([f"{number}.jpg"], [(number, number)], np.full((1, 4), number))
    reopened = Store(tmp_path, "encoder", "photos")
    places = reopened.find(["2.jpg", "0.jpg", "3.jpg"], [(2, 2), (0, 0), (3, 3)])
    assert (places[:, 0] >= 0).tolist() == [True, True, False]
    assert reopened.take(places[:2])[:, 0].tolist() == [2, 0]


@pytest.mark.parametrize(("side", "last"), [(32, False), (64, True)])
def test_large_images_are_channels_last_on_a_cpu(side, last, photos):
    encoder, formats = Encoder.timm("resnet10t", crop_size=side, pretrained=False), []
    encoder.module.register_forward_pre_hook(
        lambda module, given: formats.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    solo_hcsc.embed(encoder, photos, accelerator="cpu")
    assert formats == [last]
    assert all(value.is_contiguous() for value in encoder.module.state_dict().values())
