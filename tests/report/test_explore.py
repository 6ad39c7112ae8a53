"""The page of `solo-hcsc explore`, in a browser: down the tree and up, search, table, keys, links, names."""

import csv
import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset

from benchmarks.browser import chromium
from solo_hcsc.cells import as_cell, from_cell
from solo_hcsc.data.folders import short_names
from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.embedding import Embeddings
from solo_hcsc.encoders.table import placed
from solo_hcsc.report import explore
from solo_hcsc.report.findings import Findings
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.duplicates import Group
from solo_hcsc.trees.mislabelled import find_mislabelled

NASTY = ["<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "a & \"b\", 'c'", "é漢字 \u2028 \\n"]
IMAGES = 4300  # more than a block
LEVELS = 3


class Squares(Dataset):
    """Pictures in memory, read by a transform as all data sets are."""

    def __init__(self, images):
        self.images = images
        self.transform = None

    def __getitem__(self, index):
        return self.transform(Image.new("RGB", (16, 20), (index % 256, index // 256, 90))), -1

    def __len__(self):
        return self.images


def made(images, labelled=True):
    """Images in 24 clusters in 6 in 2, of which the last one has all images with nasty names."""
    random = np.random.default_rng(0)
    bottom = random.integers(0, 24, images)
    clusters = np.stack([bottom, bottom // 4, bottom // 12], axis=1)
    similarities = random.uniform(0.3, 0.9, (images, LEVELS)).astype("float32")
    labels = [NASTY[number // 6] for number in bottom]
    for image in (0, 1, 2):
        labels[image] = NASTY[(NASTY.index(labels[image]) + 2) % 4]
    paths = [f"{label}/{image}.png" if labelled else f"{image}.png" for image, label in enumerate(labels)]
    outliers = similarities[:, 0] < 0.305
    classes, numbers = np.unique(labels, return_inverse=True)
    known = (numbers, tuple(classes.tolist())) if labelled else (None, ())
    return Embeddings(paths, np.empty((images, 0)), *known, clusters, similarities, outliers)


def findings_of(found):
    """Two groups of duplicates, and places where each bottom cluster has a square of its own."""
    outliers = np.flatnonzero(found.outliers)
    bottom = found.clusters[:, 0]
    labels = np.full(len(found), -1) if found.labels is None else found.labels
    suspects = find_mislabelled(np.eye(24, dtype="float32")[bottom % 24], labels)
    places = np.stack([bottom % 5, bottom // 5], axis=1) * 200 + np.arange(len(found))[:, None] % 50
    groups = (Group(20, (5, 30), exact=False), Group(8, (11,), exact=True), Group(31, (32,), exact=True))
    return Findings(groups if len(found) > 32 else (), outliers, np.linspace(2, 1, len(outliers)), suspects, places)


def write(folder, found, title="Squares", tree=None):
    folder.mkdir()
    loading = Loading(batch_size=512, num_workers=0)
    explore.write_page(folder, found, Squares(len(found.paths)), loading, title, findings_of(found), tree)
    return folder


def rows_of(file):
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def tree_of(folder):
    page = (folder / "index.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="tree">(.*?)</script>', page, re.DOTALL)[1])


def part(folder, name):
    """What the page gets of a part."""
    kept = tree_of(folder)["parts"]
    if kept is not None:
        return kept[name]
    text = (folder / "data" / f"{name}.js").read_text(encoding="utf-8").strip()
    assert text.startswith(f'loaded("{name}",')
    return json.loads(text[text.index(",") + 1 : -1])


@pytest.fixture(scope="module")
def found():
    return made(IMAGES)


@pytest.fixture(scope="module")
def folder(found, tmp_path_factory):
    return write(tmp_path_factory.mktemp("large") / "page", found, title=NASTY[0])


# ---- what the page is made of ----


def test_nodes_are_ranges_of_images_with_their_figures(folder, found):
    nodes = tree_of(folder)["nodes"]
    names = [name for number in range(2) for name in part(folder, f"block-{number}")[0]]
    rows = {path: row for row, path in enumerate(found.paths)}
    order = np.array([rows[name] for name in names])
    assert sorted(order.tolist()) == list(range(IMAGES))
    assert len(nodes["level"]) == 24 + 6 + 2
    for node in range(32):
        level, number, start, size = (nodes[name][node] for name in ("level", "number", "start", "size"))
        own = order[start : start + size]
        assert set(own.tolist()) == set(np.flatnonzero(found.clusters[:, level - 1] == number).tolist())
        assert nodes["tightness"][node] == round(1000 * found.similarities[own, level - 1].mean(dtype=float))
        above = nodes["parent"][node] - 1  # the root is node 0
        assert (above < 0) == (level == LEVELS)
        if above >= 0:
            assert (nodes["level"][above], nodes["number"][above]) == (level + 1, found.clusters[own[0], level])
        counts = np.unique([found.labels[row] for row in own], return_counts=True)
        assert nodes["purity"][node] == round(1000 * counts[1].max() / size)
    for start, size in ((nodes["start"][node], nodes["size"][node]) for node in range(8, 32)):
        assert all(a >= b for a, b in pairwise(found.similarities[order[start : start + size], 0]))


def test_sheets_have_the_images_in_the_tree_s_order(folder, found):
    tree, names = tree_of(folder), part(folder, "block-0")[0]
    assert tree["sides"] == {"images": 16, "medoids": 16}
    sheet = np.asarray(Image.open(folder / "data" / "images-3.jpg"))
    assert sheet.shape == (160, 160, 3)
    for cell in (0, 57, 99):
        row = found.paths.index(names[300 + cell])
        middle = sheet[cell // 10 * 16 + 8, cell % 10 * 16 + 8].astype(int)
        assert np.abs(middle - [row % 256, row // 256, 90]).max() < 8
    nodes = tree["nodes"]
    for node in (0, 31):  # a medoid is the image that is nearest to its prototype
        level, number = nodes["level"][node], nodes["number"][node]
        own = np.flatnonzero(found.clusters[:, level - 1] == number)
        row = own[found.similarities[own, level - 1].argmax()]
        cell = nodes["medoid"][node]
        pixel = np.asarray(Image.open(folder / "data" / "medoids-0.jpg"))[cell // 10 * 16 + 8, cell % 10 * 16 + 8]
        assert np.abs(pixel.astype(int) - [row % 256, row // 256, 90]).max() < 8


def test_few_images_are_one_small_file(tmp_path):
    page = write(tmp_path / "page", made(500))
    lists = ["clusters.csv", "duplicates.csv", "index.html", "mislabelled.csv", "outliers.csv"]
    assert sorted(file.name for file in page.iterdir()) == lists
    assert (page / "index.html").stat().st_size < 1e6


def test_lists_beside_the_page_are_what_was_found(folder, found):
    duplicates = rows_of(folder / "duplicates.csv")
    assert [(row["group"], row["path"], row["keep"], row["exact"]) for row in duplicates] == [
        (group, as_cell(found.paths[image]), keep, exact)
        for group, image, keep, exact in (
            ("1", 20, "true", "false"),
            ("1", 5, "false", "false"),
            ("1", 30, "false", "false"),
            ("2", 8, "true", "true"),
            ("2", 11, "false", "true"),
            ("3", 31, "true", "true"),
            ("3", 32, "false", "true"),
        )
    ]
    outliers = np.flatnonzero(found.outliers)
    assert [row["path"] for row in rows_of(folder / "outliers.csv")] == [found.paths[image] for image in outliers]
    suspects = {row["path"]: (row["label"], row["suggested"]) for row in rows_of(folder / "mislabelled.csv")}
    assert suspects == {found.paths[i]: (found.names[i], NASTY[found.clusters[i, 0] // 6]) for i in range(3)}
    clusters = rows_of(folder / "clusters.csv")
    assert [(row["level"], int(row["images"])) for row in clusters[:8]] == [
        (level, size) for level in "32" for size in sorted(np.bincount(found.clusters[:, int(level) - 1]), reverse=True)
    ]
    assert {from_cell(row["name"]) for row in clusters[8:]} == {*short_names(NASTY)}
    for row in clusters:
        place = found.paths.index(row["most_typical"])
        assert found.clusters[place, int(row["level"]) - 1] == int(row["cluster"])


def test_any_cut_has_the_nodes_that_the_tree_has(tmp_path, cut_page):
    page, found, tree = cut_page
    merged, names = tree_of(page)["merged"], part(page, "block-0")[0]
    order = [found.paths.index(name) for name in names]
    for k in range(2, 9):
        clusters = np.full(len(found), -1)
        for at in np.flatnonzero((np.array(merged["above"]) < k) & (k <= np.array(merged["rank"]))):
            own = order[merged["start"][at] : merged["start"][at] + merged["size"][at]]
            assert (clusters[own] < 0).all()
            clusters[own] = at
            mean = found.vectors[own].mean(axis=0)
            assert merged["tightness"][at] == pytest.approx(1000 * np.linalg.norm(mean), abs=0.6)
        same = clusters[:, None] == clusters
        cut = tree.cut(k)
        assert (same == (cut[:, None] == cut)).all()


# ---- in a browser ----


@pytest.fixture(scope="module")
def cut_page(tmp_path_factory):
    """A page of a `Tree` of 40 images without labels, with levels of 8 and 2 clusters."""
    found = made(40, labelled=False)
    vectors = np.random.default_rng(1).normal(size=(40, 6)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tree = build_tree(vectors, levels=(8, 2))
    found = placed(replace(found, vectors=vectors), tree)
    return write(tmp_path_factory.mktemp("cut") / "page", found, tree=tree), found, tree


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browser, folder):
    """The page as it opens; at the end it has complained of nothing, and asked for nothing but its own files."""
    browser.events.clear()
    browser.look(1280, 800)
    show(browser, folder)
    yield browser
    assert browser.complaints == []
    assert not [message for message in browser.events if message.get("method") == "Page.javascriptDialogOpening"]
    assert all(address.startswith(("about:", "data:", "blob:", folder.as_uri())) for address in browser.requests)


READY = "document.getElementById('panel').dataset.ready === location.hash"


def show(tab, folder, state=""):
    tab.open(f"{folder.as_uri()}/index.html{state}")
    tab.wait(READY)


def follow(tab, act, *words):
    """Does what changes the address; returns it when the page shows it."""
    before = tab.run("location.hash")
    act(*words)
    tab.wait(f"location.hash !== {json.dumps(before)} && {READY}")
    return tab.run("location.hash")


def text(tab, selector):
    return tab.run(f"document.querySelector({json.dumps(selector)}).innerText")


def listed(tab):
    """The images in sight in the panel."""
    return tab.run("[...document.querySelectorAll('.thumb')].map((one) => one.title)")


def enter(tab, query):
    """Types into the search box; waits for what it finds."""
    tab.press("/")
    tab.wait("document.activeElement.id === 'search'")
    tab.call("Input.insertText", text=query)
    tab.wait("/files?/.test(document.querySelector('#results p')?.innerText)")
    return tab.run("[...document.querySelectorAll('#results > div')].map((one) => one.innerText)")


def test_clicks_go_down_to_an_image_and_the_path_goes_up(tab, found):
    seen = [follow(tab, tab.click_on, "#tiles") for _ in range(LEVELS)]
    places = [tuple(map(int, re.fullmatch(r"#node=(\d+)\.(\d+)", state).groups())) for state in seen]
    assert [level for level, _ in places] == [3, 2, 1]
    bottom = places[-1][1]
    assert [number for _, number in places] == [bottom // 12, bottom // 4, bottom]
    assert f"Level 1, cluster {bottom}" in text(tab, "#node")
    assert f"{(found.clusters[:, 0] == bottom).sum()}" in text(tab, "#node dl")
    assert "image=" in follow(tab, tab.click, 60, 130)  # the first picture of the cluster
    nearest = np.where(found.clusters[:, 0] == bottom, found.similarities[:, 0], -1).argmax()
    assert text(tab, ".card h3") == found.paths[nearest]
    crumbs = tab.run("document.querySelectorAll('#crumbs a').length")
    assert crumbs == LEVELS
    assert follow(tab, tab.click_on, "#crumbs a:nth-child(2)") == f"#node=3.{places[0][1]}"
    assert follow(tab, tab.click_on, "#crumbs a") == ""


def test_nearest_come_first_and_outliers_last(tab, found, folder):
    show(tab, folder, "#node=2.3")
    own = np.flatnonzero(found.clusters[:, 1] == 3)
    near = own[~found.outliers[own]]
    near = near[np.argsort(-found.similarities[near, 1], kind="stable")]
    first = tab.run("document.querySelector('.thumb').title").split("\n")[0]
    assert tab.run("document.querySelector('#hint').innerText") == "Nearest to the centre first"
    assert found.similarities[found.paths.index(first), 1] == found.similarities[near[0], 1]
    tab.run("document.getElementById('scroller').scrollTop = 1e9")
    tab.wait("!!document.querySelector('#grid h3')")
    assert text(tab, "#grid h3") == f"Outliers ({found.outliers[own].sum()})"
    assert tab.run("document.querySelectorAll('.thumb.outlier').length") == found.outliers[own].sum()
    follow(tab, tab.click_on, "#tab-outliers")
    assert sorted(title.split("\n")[0] for title in listed(tab)) == sorted(
        found.paths[row] for row in own[found.outliers[own]]
    )


def test_search_by_file_name_shows_the_path_of_the_image(tab, found):
    hits = enter(tab, "/1234.PNG")
    assert hits[0].startswith(found.paths[1234])
    assert len(hits) == 1
    state = follow(tab, tab.press, "Enter", "\r")
    bottom = found.clusters[1234, 0]
    assert f"node=1.{bottom}" in state
    steps = tab.run("[...document.querySelectorAll('.card li')].map((one) => one.innerText)")
    assert [step.split(" ")[0] for step in steps] == [f"3.{bottom // 12}", f"2.{bottom // 4}", f"1.{bottom}"]
    assert [float(step.split("\n")[-1]) for step in steps] == [
        pytest.approx(similarity, abs=0.006) for similarity in found.similarities[1234, ::-1]
    ]


def test_search_by_class_lists_its_images_alone(tab, found):
    hits = enter(tab, "漢字")
    assert hits[0].startswith("é漢字")
    follow(tab, tab.press, "Enter", "\r")
    many = found.names.count(NASTY[3])
    assert text(tab, "#filter").startswith(f"{many:,} of class é漢字")
    assert {title.split("\n")[-1] for title in listed(tab)} == {NASTY[3]}
    follow(tab, tab.click_on, "#filter a")
    assert tab.run("document.getElementById('filter').hidden")


def saved(tab, tmp_path):
    """The rows of the table that the button saves."""
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=True)
    tab.click_on("#save")
    name = tab.event("Browser.downloadWillBegin")["suggestedFilename"]
    tab.event("Browser.downloadProgress", state="completed")
    with (tmp_path / name).open(encoding="utf-8", newline="") as file:
        return name, list(csv.DictReader(file))


def test_saved_table_is_the_shown_selection(tab, found, folder, tmp_path):
    show(tab, folder, f"#node=2.5&class={sorted(NASTY).index(NASTY[3])}")
    name, rows = saved(tab, tmp_path)
    own = [i for i in range(IMAGES) if found.clusters[i, 1] == 5 and found.names[i] == NASTY[3]]
    assert name == "cluster-2.5-images.csv"
    assert {row["path"] for row in rows} == {found.paths[i] for i in own}
    assert len(rows) == len(own)
    for row in rows:
        image = found.paths.index(row["path"])
        assert row["label"] == found.names[image]
        assert [int(row[f"cluster_{level}"]) for level in (1, 2, 3)] == found.clusters[image].tolist()
        similarities = [float(row[f"similarity_{level}"]) for level in (1, 2, 3)]
        assert similarities == pytest.approx(found.similarities[image].tolist(), abs=6e-4)
        assert row["outlier"] == str(found.outliers[image]).lower()
    outliers = [row["outlier"] for row in rows]
    assert outliers == sorted(outliers)  # come last


def test_saved_formulas_are_none_in_a_spreadsheet_and_read_back_as_they_were(browser, tmp_path):
    names = ["=1+2", "-x", "+x", "@x", "\tx", "'=x", "''-x", "'tis", 'a "b", =c']
    found = replace(
        made(len(names)), paths=[f"{name}/1.png" for name in names], labels=np.arange(len(names)), classes=tuple(names)
    )
    folder = write(tmp_path / "page", found)
    show(browser, folder)
    _, rows = saved(browser, tmp_path)
    assert sorted(from_cell(row["label"]) for row in rows) == sorted(names)
    assert {from_cell(row["path"]) for row in rows} == {*found.paths}
    for row in rows:
        assert row["path"] == as_cell(from_cell(row["path"]))
        assert row["path"][0] not in "=+-@\t"


def test_likely_mislabelled_images_are_the_planted_ones(tab, found, folder, tmp_path):
    follow(tab, tab.click_on, "#tab-suspects")
    assert len(listed(tab)) == 3
    _, rows = saved(tab, tmp_path)
    assert {row["path"] for row in rows} == set(found.paths[:3])
    assert {row["path"]: row["suggested"] for row in rows} == {
        found.paths[i]: NASTY[found.clusters[i, 0] // 6] for i in range(3)
    }


def test_keys_choose_open_and_go_up(tab):
    tab.press("ArrowRight")
    first = text(tab, "#status")
    tab.press("ArrowRight")
    tab.wait(f"document.getElementById('status').innerText !== {json.dumps(first)}")
    second = text(tab, "#status")
    tab.press("ArrowLeft")
    tab.wait(f"document.getElementById('status').innerText === {json.dumps(first)}")
    tab.press("ArrowRight")
    level, number = re.match(r"Level (\d+), cluster (\d+)", second).groups()
    assert follow(tab, tab.press, "Enter", "\r") == f"#node={level}.{number}"
    assert follow(tab, tab.press, "Escape") == ""
    tab.press("ArrowDown")
    follow(tab, tab.press, "Enter", "\r")
    assert follow(tab, tab.press, "Backspace") == ""


def test_address_holds_the_state(tab, folder):
    state = "#node=1.17&tab=outliers&colour=purity&class=1"
    show(tab, folder, state)
    assert "Level 1, cluster 17" in text(tab, "#node")
    assert tab.run("document.getElementById('colour').value") == "purity"
    assert tab.run("document.querySelector('[aria-selected=true]').id") == "tab-outliers"
    assert not tab.run("document.getElementById('filter').hidden")
    follow(tab, tab.click_on, "#crumbs a")
    follow(tab, lambda: tab.run("history.back()"))
    assert tab.run("location.hash") == state
    show(tab, folder, "#node=9.99&tab=nothing&class=x&image=-1")
    assert "The whole tree" in text(tab, "#node")


def test_names_stay_text(tab):
    assert text(tab, "h1") == NASTY[0]
    assert tab.run("document.title") == NASTY[0]
    enter(tab, "alert")
    assert tab.run("document.querySelectorAll('img, #results script').length") == 0
    assert NASTY[0] in text(tab, "#results")


def test_first_look_needs_the_page_and_one_sheet(browser, folder):
    browser.events.clear()
    show(browser, folder)
    browser.wait("performance.getEntriesByName('first-picture').length")
    sheets = {address for address in browser.requests if "medoids" in address}
    assert sheets == {f"{folder.as_uri()}/data/medoids-0.jpg"}
    assert browser.run("document.querySelectorAll('.thumb').length") < 60  # of 4,300


@pytest.mark.parametrize("dark", [False, True])
def test_phone_shows_all_without_scrolling_sideways(tab, folder, dark):
    tab.look(390, 844, dark=dark, phone=True)
    for state in ("", "#node=1.17&image=5", "#tab=suspects"):
        show(tab, folder, state)
        assert tab.run("document.documentElement.scrollWidth") == 390
        boxes = tab.run(
            "['#tiles', '#search', '#save', '#panel', '.thumb'].map((one) => document.querySelector(one)"
            ".getBoundingClientRect()).map(({left, right, bottom, height}) => [left, right, bottom, height])"
        )
        assert all(
            left >= 0 and right <= 390 and bottom <= 900 and height > 20 for left, right, bottom, height in boxes
        )
    tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
    show(tab, folder)
    tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": 150, "y": 250}])
    assert re.fullmatch(
        r"#node=3\.\d", follow(tab, lambda: tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[]))
    )
    tab.call("Emulation.setTouchEmulationEnabled", enabled=False)


def test_clusters_are_listed_by_size_and_open(tab, found, tmp_path):
    follow(tab, tab.click_on, "#tab-clusters")
    sizes = np.sort(np.bincount(found.clusters[:, 2]))[::-1]
    shown = tab.run("[...document.querySelectorAll('[data-node] small')].map((one) => one.innerText)")
    assert shown[::2] == [f"{size:,} images" for size in sizes]
    name, rows = saved(tab, tmp_path)
    assert (name, [int(row["images"]) for row in rows]) == ("all-clusters.csv", sizes.tolist())
    assert re.fullmatch(r"#node=3\.\d&tab=clusters", follow(tab, tab.click_on, "[data-node]"))


def test_duplicates_are_groups_whose_first_image_is_to_keep(tab, found, tmp_path):
    follow(tab, tab.click_on, "#tab-duplicates")
    assert tab.run("[...document.querySelectorAll('#grid h3')].map((one) => one.innerText)") == [
        "3 alike",
        "2 equal files",
        "2 equal files",
    ]
    kept = tab.run("[...document.querySelectorAll('.keep')].map((one) => one.title.split('\\n')[0])")
    assert kept == [found.paths[20], found.paths[8], found.paths[31]]
    _, rows = saved(tab, tmp_path)
    assert [row["path"] for row in rows] == [found.paths[image] for image in (20, 5, 30, 8, 11, 31, 32)]
    assert [row["keep"] for row in rows] == ["true", "false", "false", *["true", "false"] * 2]


def test_lasso_on_the_map_selects_what_is_listed_and_saved(tab, found, tmp_path):
    follow(tab, tab.click_on, "#view-map")
    box = tab.run(
        "(({ x, y, width, height }) => [x, y, width, height])(document.querySelector('#tiles').getBoundingClientRect())"
    )
    x, y, width, height = box

    def draw():
        around = [(0.5, 0.01), (0.01, 0.01), (0.01, 0.99), (0.5, 0.99)]
        for kind, (right, down) in zip(("Pressed", *["Moved"] * 2, "Released"), around, strict=True):
            button = {"button": "left", "buttons": 1, "clickCount": 1}
            at = {"x": x + right * width, "y": y + down * height}
            if kind == "Released":
                tab.call("Input.dispatchMouseEvent", type="mouseMoved", **at, **button)
            tab.call("Input.dispatchMouseEvent", type=f"mouse{kind}", **at, **button)

    lasso = re.search(r"lasso=([\d._]+)", follow(tab, draw))[1]
    edge = max(int(corner.split(".")[0]) for corner in lasso.split("_"))
    _, rows = saved(tab, tmp_path)
    places = findings_of(found).places
    picked = {row["path"] for row in rows}
    assert 0 < len(picked) < IMAGES
    assert picked == {found.paths[i] for i in np.flatnonzero(places[:, 0] < edge)}
    assert text(tab, "#filter").startswith(f"{len(picked):,} in the lasso")
    follow(tab, tab.click_on, "#filter a")
    assert tab.run("document.getElementById('filter').hidden")


def test_slider_cuts_the_tree(tab, browser, cut_page, tmp_path):
    page, found, tree = cut_page
    show(browser, page)
    slide = "const cut = document.getElementById('cut'); cut.value = 4; cut.dispatchEvent(new Event('input'))"
    assert follow(browser, browser.run, slide) == "#cut=5"
    assert text(browser, "#cuts") == "5 clusters"
    _, rows = saved(browser, tmp_path)
    assert {row["path"]: int(row["cut_5"]) for row in rows} == dict(zip(found.paths, tree.cut(5).tolist(), strict=True))
    follow(browser, browser.click_on, "#tiles")
    number = int(re.fullmatch(r"Cut into 5, cluster (\d)", text(browser, ".head p"))[1])
    assert f"{(tree.cut(5) == number).sum()}" in text(browser, "#node dl")
    browser.events[:] = [one for one in browser.events if one.get("method") != "Network.requestWillBeSent"]


def test_page_of_one_file_without_labels_works(tab, browser, tmp_path):
    page = write(tmp_path / "page", made(40, labelled=False))
    show(browser, page)
    browser.wait("performance.getEntriesByName('first-picture').length")
    assert "mislabelled" not in text(browser, "#tabs").lower()
    follow(browser, browser.click_on, "#tiles")
    assert re.fullmatch(r"Cluster 3\.\d", text(browser, "h2"))
    _, rows = saved(browser, tmp_path)
    assert list(rows[0]) == ["path", *(f"{n}_{i}" for n in ("cluster", "similarity") for i in (1, 2, 3)), "outlier"]
    browser.events[:] = [one for one in browser.events if one.get("method") != "Network.requestWillBeSent"]
