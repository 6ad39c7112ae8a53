"""A comparison as one page: true to its numbers, safe with any name, and whole in a browser."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from comparisons import change, comparison, row_of, write
from matplotlib.figure import Figure
from tiny import run_here

from solo_hcsc.errors import UserError
from solo_hcsc.report import curves, figures, svg
from solo_hcsc.report.page import make_report
from solo_hcsc.study import record

NASTY = ("<script>alert(1)</script>", "$x_1$ \"a\" 'b' <img src=x onerror=alert(1)>", "层次对比")

HEADINGS = [("KNN %", 1000), ("Linear %", 1000), ("AMI", 5000), ("NMI", 5000)]


def make(folder, out=None, title=None):
    return make_report(folder, title).save(out)


def picture():
    figure = Figure(figsize=(3, 2))
    axes = figure.add_subplot()
    axes.plot([1, 2], [3, 4], marker="o")
    axes.imshow([[0, 1], [1, 0]])
    return figure


def analyse(folder, run, method, picture_text=None):
    where = folder / run["folder"] / "analysis"
    where.mkdir(parents=True)
    figures.write_svg(where / "chain.svg", picture_text or figures.to_svg("chain", picture))
    content = {
        "method": method,
        "checkpoint": "run/x.ckpt",
        "checkpoint_sha256": "0123",
        "command": "solo-hcsc analyse",
        "flags": [],
        "versions": {},
        "seconds": 1.5,
        "data": {},
        "settings": {},
        "numbers": {"levels": {"0": {"purity": 0.6125}}, "sizes": [3, 2]},
        "figures": [{"file": "chain.svg", "title": f"From fine to coarse, {method}", "caption": "One row per level"}],
    }
    (where / "analysis.json").write_text(json.dumps(content))
    return where


@pytest.fixture
def nasty(tmp_path):
    """A comparison whose every text is hostile, with a failed run and two analyses with pictures of equal ids."""
    rows = {NASTY[0]: [45.0, 45.4], NASTY[1]: [41.0, 41.4], NASTY[2]: [41.1], "w" * 90: [40.0]}
    content = comparison(rows, title=NASTY[0], failed={NASTY[1]: NASTY[0]})
    for part in ("settings", "versions", "machine"):
        content[part] |= dict(zip(NASTY, NASTY[::-1], strict=True))
    content["command"] = NASTY[1] + "x" * 500
    folder = write(tmp_path / "nasty", content)
    for row in content["rows"][:2]:
        analyse(folder, row["runs"][0], row["name"])
    return folder


class Page(HTMLParser):
    """Tags, text, the cells of every row of a table, and ids."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.rows, self.ids, self.links = [], [], [], [], []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        self.in_cell &= tag not in ("td", "th")

    def handle_data(self, data):
        self.texts.append(data)
        if self.in_cell:
            self.rows[-1][-1] += data


def page_of(folder, **options):
    return Page(make(folder, **options).read_text())


def test_page_and_json_have_the_comparisons_numbers(tmp_path, capsys):
    content = comparison()
    write(tmp_path, content)
    run_here("report", tmp_path)
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert re.search(r"45\.20 ± 0\.28 +50\.20 ± 0\.28 +0\.452 ± 0\.003", out)
    assert json.loads((tmp_path / "report.json").read_text())["comparison"] == content
    page = Page((tmp_path / "report.html").read_text())
    assert ["Method", *(f"{name} ({count} images)" for name, count in HEADINGS), "Seeds"] in page.rows
    for row in content["rows"]:
        shown = [
            f"{row['measures'][name]['mean']:.{digits}f} ± {row['measures'][name]['spread']:.{digits}f}"
            for name, digits in (("knn", 2), ("linear", 2), ("ami", 3), ("nmi", 3))
        ]
        assert [row["name"], *shown, "2"] in page.rows
        for run in row["runs"]:
            value = run["measures"]
            measured = [f"{value['knn']:.2f}", f"{value['linear']:.2f}", f"{value['ami']:.3f}", f"{value['nmi']:.3f}"]
            shown = [row["name"], str(run["seed"]), *measured]
            assert any(cells[:6] == shown and cells[-1] == "0123456789ab" for cells in page.rows)
            assert "\n".join([run["command"], "solo-hcsc knn --k 20", "solo-hcsc clustering"]) in page.texts
    assert ["mocov2plus", "4", "70.0 1.17×", "4:40 1.17×", "1,235 1.00×"] in page.rows  # noqa: RUF001


def test_made_twice_is_the_same_bytes_wherever_it_lies(nasty, tmp_path):
    first = [make(nasty).read_bytes(), (nasty / "report.json").read_bytes()]
    assert [make(nasty).read_bytes(), (nasty / "report.json").read_bytes()] == first
    moved = shutil.copytree(nasty, tmp_path / "moved")
    assert [make(moved).read_bytes(), (moved / "report.json").read_bytes()] == first
    assert str(tmp_path).encode() not in b"".join(first)


def test_title_and_place_can_be_chosen(tmp_path, capsys):
    write(tmp_path, comparison())
    run_here("report", tmp_path, "--out", tmp_path / "mine.html", "--title", "a < b")
    assert "<title>a &lt; b</title>" in (tmp_path / "mine.html").read_text()
    assert json.loads((tmp_path / "mine.json").read_text())["title"] == "a < b"
    assert not (tmp_path / "report.html").exists()


def test_sheets_of_detectors_stand_beside_the_runs_they_were_trained_on(tmp_path):
    content = comparison({"hcsc": [45.0], "mocov2plus": [41.0]})
    content["rows"][1]["runs"][0]["checkpoint_sha256"] = "f" * 64
    folder = write(tmp_path / "study", content)
    where = folder / "detect" / "abc"
    where.mkdir(parents=True)
    figures.write_svg(where / "detections.svg", figures.to_svg("detections", picture))
    result = {
        "evaluation": "detect",
        "method": "hcsc",
        "dataset": "voc0712",
        "metrics": {"AP50": 61.25},
        "settings": {"pictures": {"file": "detections.svg", "title": "Boxes", "caption": "12 of 60 test images."}},
        "checkpoint_sha256": "0123456789abcdef" * 4,
    }
    (where / "detect.json").write_text(json.dumps(result))
    page = make(folder).read_text()
    section = page[page.index('<section id="detection">') :]
    assert "Boxes, hcsc, AP50 61.2 %, abc" in section
    assert section.index('class="name"') < section.index("12 of 60 test images.")
    assert section[: section.index("</section>")].count("<h3>") == 1  # the other run has no detector
    (where / "detect.json").unlink()
    assert '<section id="detection">' not in make(folder).read_text()


def test_one_seed_has_no_spread(tmp_path):
    write(tmp_path, comparison({"hcsc": [45.0], "mocov2plus": [40.0], "swav": [45.0]}))
    page = make(tmp_path).read_text()
    assert "sample standard deviation over seeds" not in page
    assert "KNN % (1000 images)" in page
    assert "No clear winner in KNN accuracy" in page
    assert 'class="number best"' not in page, "hcsc and swav are level"


def test_run_that_failed_says_so_beside_its_row(tmp_path):
    write(tmp_path, change(comparison(), "rows.1.runs.0.warnings", ["collapsed: <b>all</b>"]))
    page = make(tmp_path).read_text()
    assert "<strong>mocov2plus</strong> ended with a warning: collapsed: &lt;b&gt;all&lt;/b&gt;." in page


def test_rows_with_more_epochs_are_told(tmp_path):
    longer = row_of("swav, 8 epochs", [42.0, 42.2], 30.0, base="swav", epochs=8)
    content = comparison(budget="seconds")
    write(tmp_path, content | {"rows": [*content["rows"], longer]})
    assert "4 to 8 epochs, also at equal time" in page_of(tmp_path).texts


@pytest.mark.parametrize(("split", "told"), [("train", True), ("val", False)])
def test_clusters_of_training_images_are_told(split, told, tmp_path):
    content = comparison()
    for row in content["rows"]:
        for run in row["runs"]:
            run["evaluations"]["clustering"]["split"] = split
    write(tmp_path, content)
    assert ("AMI and NMI are of clusters of the training images." in make(tmp_path).read_text()) == told


def test_missing_measures_and_failed_runs_are_shown(tmp_path):
    content = comparison(failed={"swav, seed 2": "pretrain ended with code 2"})
    del content["rows"][2]["measures"]["linear"]
    content["rows"][2]["cost"] = {"epochs": 4, "epoch_seconds": None}
    content["rows"][2]["runs"][0]["curves"] = {}
    for row in content["rows"]:
        del row["measures"]["nmi"]
    write(tmp_path, content)
    page = page_of(tmp_path)
    assert "1 run failed and is in none of these numbers." in page.texts
    assert ["swav", "41.40 ± 0.42", "–", "0.414 ± 0.004", "2"] in page.rows  # noqa: RUF001
    assert ["swav", "4", "–", "–", "–"] in page.rows  # noqa: RUF001


def test_nothing_but_names_still_makes_a_page(tmp_path):
    row = {"name": "hcsc", "base": "hcsc", "epochs": None, "flags": [], "measures": {}, "cost": {}, "runs": []}
    write(tmp_path, comparison() | {"rows": [row], "settings": {}, "machine": {}, "versions": {}})
    page = page_of(tmp_path)
    assert "No run has an accuracy." in page.texts
    assert not {"results", "curves", "cost", "analysis"} & set(page.ids)


def test_ablation_is_seen_against_its_reference(tmp_path):
    rows = {"HP": [40.0, 40.2], "HP, IL": [42.0, 42.2], "all": [43.0, 43.2]}
    write(tmp_path, comparison(rows, kind="ablate") | {"reference": "all"})
    page = page_of(tmp_path)
    assert "Ablation" in page.texts
    minus, space = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"
    assert any(cells[:2] == ["HP, IL", f"{minus}1.00 {space}42.10 ± 0.14"] for cells in page.rows)
    assert any(cells[0] == "HP, IL" and cells[2] == "70.0 0.88×" for cells in page.rows)  # noqa: RUF001


def test_curves_count_epochs_from_one_and_average_seeds_where_all_have_values(tmp_path):
    content = comparison({"hcsc": [40.0, 42.0]})
    content["rows"][0]["runs"][0]["curves"]["val_knn_acc1"] = [[0, 10.0], [1, 20.0], [2, None], [3, float("nan")]]
    write(tmp_path, content)
    pictures = {plot.name: plot for plot in curves.plots(record.read(tmp_path))}
    assert list(pictures) == [
        *("val_knn_acc1-epochs", "val_knn_acc1-time", "val_acc1-epochs", "val_acc1-time", "left-out-precision")
    ]
    lines = pictures["val_knn_acc1-epochs"].lines
    assert [list(line.points) for line in lines] == [
        [(1, 10.0), (2, 20.0)],
        [(1, 39.0), (2, 40.0), (3, 41.0), (4, 42.0)],
        [(1, 24.5), (2, 30.0)],
    ]
    assert [line.bold for line in lines] == [False, False, True]
    assert [x for x, _ in pictures["val_knn_acc1-time"].lines[1].points] == [61, 122, 183, 244]
    assert {line.style for line in pictures["left-out-precision"].lines} == {"-", "--"}
    caption = pictures["left-out-precision"].caption
    assert caption.endswith("Solid: level 1, the bottom of the hierarchy; dashed: level 2.")
    assert figures.to_png(pictures["val_acc1-time"].picture(legend=True).draw)[:4] == b"\x89PNG"


def test_measures_without_labels_are_folded_beside_accuracies_and_shown_where_there_are_none(tmp_path):
    content = comparison({"hcsc": [40.0, 42.0], "swav": [39.0]})
    judged = {"rankme": [[0, 20.0], [1, 30.0]], "dead_dimensions": [[0, 0.5], [1, None]]}
    content["rows"][0]["runs"][0]["curves"] |= judged
    write(tmp_path, content)
    plots = {plot.name: plot for plot in curves.judged_plots(record.read(tmp_path))}
    assert list(plots) == ["rankme", "dead-dimensions"]
    assert [(line.row, list(line.points)) for line in plots["rankme"].lines] == [(0, [(1, 20.0), (2, 30.0)])]
    page = page_of(tmp_path)
    assert "Measures without labels" in page.texts
    assert {"RankMe", "Dead dimensions"} <= set(page.texts)
    for row in content["rows"]:
        for run in row["runs"]:
            run["curves"] = judged
    page = page_of(write(tmp_path, content))
    assert "curves" in page.ids
    assert "Measures without labels" not in page.texts


def test_names_are_text_and_never_markup(nasty):
    page = page_of(nasty)
    assert not {"script", "img"} & set(page.tags)
    text = "".join(page.texts)
    assert all(name in text for name in NASTY)
    assert all(link.startswith(("#", "data:image/")) for link in page.links)


def test_pictures_of_one_page_share_no_ids(nasty):
    page = page_of(nasty)
    assert len(set(page.ids)) == len(page.ids) > 20
    text = (nasty / "report.html").read_text()
    used = set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', text))
    assert {one or other for one, other in used} <= set(page.ids)
    analyses = json.loads((nasty / "report.json").read_text())["analyses"]
    assert [found["figures"][0]["caption"] for found in analyses.values()] == ["One row per level"] * 2


SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">{}</svg>'
HOSTILE = {
    "script": ("<script>alert(1)</script>", "an element <script>"),
    "prefixed script": ('<s:script xmlns:s="http://www.w3.org/2000/svg"/>', "an element <script>"),
    "page within": ("<foreignObject/>", "an element <foreignObject>"),
    "handler": ('<g onclick="x()"/>', "a handler onclick"),
    "link": ('<use xlink:href="https://example.org/x.svg#a"/>', "a link to https://example.org/x.svg#a"),
    "script link": ('<use href="javascript:alert(1)"/>', "a link to javascript:alert(1)"),
    "image": ('<image href="http://example.org/x.png"/>', "a link to http://example.org/x.png"),
    "svg image": ('<image href="data:image/svg+xml;base64,AA"/>', "a link to data:image/svg+xml"),
    "fill": ('<path fill="url(http://example.org/x)"/>', "a link in url(http://example.org/x)"),
    "style": ("<style>@import 'x'</style>", "a link in @import"),
    "not closed": ("<g>", "not readable as SVG"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_picture_that_does_more_than_draw_is_refused(name):
    element, reason = HOSTILE[name]
    with pytest.raises(UserError, match=f"^x.svg: .*{re.escape(reason)}"):
        svg.inline(SVG.format(element), "a-", "a picture", "x.svg")


def test_refused_picture_is_named_and_nothing_is_written(tmp_path, refused):
    content = comparison()
    write(tmp_path, content)
    where = analyse(tmp_path, content["rows"][0]["runs"][0], "hcsc", SVG.format("<script/>"))
    assert f"{where / 'chain.svg'}: has an element <script>" in refused("report", tmp_path)


def test_text_that_only_xml_hides_stays_text():
    """A browser reads no CDATA in a title of an SVG: what follows would be a page's."""
    found = svg.inline(SVG.format("<title><![CDATA[><img src=x onerror=alert(1)>]]></title>"), "a-", "x", "x")
    assert "&gt;&lt;img src=x" in found


def test_what_is_not_there_is_named(tmp_path, refused):
    line = refused("report", write(tmp_path / "foreign", {"rows": []}))
    assert f"{tmp_path / 'foreign' / 'comparison.json'}: not what solo-hcsc compare writes (" in line
    assert "there is no such folder" in refused("report", tmp_path / "none")
    assert "comparison.json: there is no such file; run solo-hcsc compare first" in refused("report", tmp_path)
    content = comparison()
    write(tmp_path, content)
    where = analyse(tmp_path, content["rows"][0]["runs"][0], "hcsc")
    for flags, message in (
        (("--out", tmp_path / "none" / "x.html"), "there is no folder"),
        (("--out", tmp_path / "x.pdf"), "must end with .html"),
        (("--out", tmp_path / "comparison.html"), "its numbers would replace"),
        (("--out", where / "analysis.html"), "its numbers would replace"),
        (("--offline",), "--offline goes with --wandb"),
    ):
        assert message in refused("report", tmp_path, *flags)
    (where / "chain.svg").unlink()
    assert f"{where / 'chain.svg'}: cannot be read (No such file or directory)" in refused("report", tmp_path)
    analysis = json.loads((where / "analysis.json").read_text())
    (where / "analysis.json").write_text(json.dumps(change(analysis, "figures.0.file", "../chain.svg")))
    assert f"{where / 'analysis.json'}: not what solo-hcsc analyse writes" in refused("report", tmp_path)
    write(tmp_path, change(content, "rows.0.runs.0.folder", "../x"))
    assert "the run ../x is outside of its folder" in refused("report", tmp_path)


def test_name_that_is_no_valid_unicode_is_spelled_out(tmp_path):
    content = change(comparison(), "rows.0.name", "a\ud800b")
    write(tmp_path, change(content, "settings.x", "c\ud800d"))
    text = make(tmp_path).read_text(encoding="utf-8")
    assert r"a\ud800b" in text
    assert r"c\ud800d" in text
    with pytest.raises(UserError, match="not an SVG picture but <g>"):
        svg.inline("<g/>", "a-", "x", "x")


def browse(page, tmp_path):
    """The page's elements after headless Chromium has shown it, and what it logged."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    assert chromium, f"none of {', '.join(names)} is installed: nothing can show that the page works"
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
        " --disable-component-update --enable-logging=stderr --v=0 --virtual-time-budget=3000"
        " --hide-scrollbars --dump-dom"
    )
    shown = subprocess.run(
        [chromium, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout, [line for line in shown.stderr.splitlines() if "CONSOLE" in line]


def test_browser_shows_the_page_without_complaint(nasty, tmp_path):
    text, complaints = browse(make(nasty), tmp_path)
    assert complaints == []
    page = Page(text)
    assert not {"script", "img"} & set(page.tags)
    tables = [[cells[0] for cells in page.rows if len(cells) == width] for width in (6, 5, 9)]
    names = [*NASTY, "w" * 90]
    runs = [name for name, count in zip(names, (2, 2, 1, 1), strict=True) for _ in range(count)]
    assert tables == [["Method", *names], ["Method", *names], ["Run", *runs]]


MEASURE = """<!doctype html><body>{frames}<pre id="found"></pre><script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument;
    page.querySelectorAll("details").forEach((one) => {{ one.open = true; }});
    const sizes = [...page.querySelectorAll("svg")].map((one) => one.getBoundingClientRect());
    return {{
      title: page.title,
      width: page.documentElement.scrollWidth,
      pictures: sizes.map((size) => [size.width, size.height]),
    }};
  }});
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>"""


def test_pictures_have_size_and_the_page_never_scrolls_sideways(nasty, tmp_path):
    text = make(nasty).read_text()
    open_page = re.sub(r"<meta http-equiv=.*>", "", text)  # the measuring script has to reach into it
    frames = "".join(
        f'<iframe style="border:0;height:700px;width:{width}px" srcdoc="{escape(open_page)}"></iframe>'
        for width in (360, 400, 1200)
    )
    (tmp_path / "measure.html").write_text(MEASURE.format(frames=frames))
    shown, complaints = browse(tmp_path / "measure.html", tmp_path)
    assert complaints == []
    found = json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)[1]))
    assert [page["width"] for page in found] == [360, 400, 1200]
    for page in found:
        assert page["title"] == NASTY[0]  # no script in it ran, though here it could have
        assert len(page["pictures"]) == text.count("<svg") > 20
        assert min(min(size) for size in page["pictures"]) > 8
        assert sum(width > 250 and height > 120 for width, height in page["pictures"]) == 7


def test_wandb_gets_the_curves_and_the_means(tmp_path, monkeypatch, capsys):
    import wandb

    summary = {}
    finish = wandb.Run.finish
    monkeypatch.setattr(wandb.Run, "finish", lambda self: summary.update(dict(self.summary)) or finish(self))
    write(tmp_path, comparison())
    run_here("report", tmp_path, "--wandb", "--offline", "--project", "p", "--name", "n")
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert summary["hcsc/knn"] == pytest.approx(45.2)
    assert len(list(Path(tmp_path, "wandb").rglob("*.png"))) == 5


def test_page_is_made_again_from_the_record_beside_it(nasty, tmp_path):
    """All of it but the pictures of analyses, which are in the runs' folders."""
    page = make(nasty)
    file = shutil.copy(page.with_suffix(".json"), tmp_path / "published.json")
    before = Path(file).read_bytes()
    again = make(file)
    assert again == tmp_path / "published.html"
    assert Path(file).read_bytes() == before, "the record is left as it is"
    first, second = Page(page.read_text()), Page(again.read_text())
    assert second.rows == first.rows
    assert "The pictures are in the run's folder." in second.texts
    assert "The pictures are in the run's folder." not in first.texts
    run_here("report", file, "--out", tmp_path / "other.html", "--title", "Another")
    assert json.loads((tmp_path / "other.json").read_text())["title"] == "Another"


@pytest.mark.parametrize("content", ["[]", '{"comparison": {}, "analyses": {}}', '{"title": "x"}', "{"])
def test_file_that_is_no_reports_record_is_refused(content, tmp_path, refused):
    file = tmp_path / "record.json"
    file.write_text(content)
    assert f"{file}: n" in refused("report", file)


def test_report_is_a_table_and_a_frame(tmp_path):
    found = make_report(write(tmp_path, comparison()))
    assert "hcsc has the best KNN accuracy" in found.table()
    assert list(found.to_pandas()["name"]) == ["hcsc"] * 2 + ["mocov2plus"] * 2 + ["swav"] * 2
