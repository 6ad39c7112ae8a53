"""Results in one table, with the paper's figures beside those that are comparable."""

import json
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from tiny import run_here

from solo_hcsc.evaluation.paper import PUBLISHED, find
from solo_hcsc.report.summary import HEADER, summarise


def result(evaluation="knn", dataset="imagenet", method="hcsc", settings=None, metrics=None, **pretraining):
    return {
        "evaluation": evaluation,
        "dataset": dataset,
        "method": method,
        "metrics": metrics or {"acc1": 60.1, "acc5": 80.2},
        "settings": {"deviations": []} | (settings or {"k": 20, "features": "backbone"}),
        "checkpoint": "runs/x.ckpt",
        "seconds": 12.3,
        "pretraining": {"encoder": "resnet50", "dataset": "imagenet", "max_epochs": 200, **pretraining},
    }


def summary_of(tmp_path, capsys, *results):
    for number, content in enumerate(results):
        (tmp_path / f"{number}.json").write_text(json.dumps(content))
    run_here("summary", tmp_path, "--wide")
    return capsys.readouterr().out, (tmp_path / "summary.md").read_text(), (tmp_path / "summary.html").read_text()


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_table_follows_the_terminals_width_and_wide_has_all(columns, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    wide, *_ = summary_of(tmp_path, capsys, result(), result(evaluation="linear"))
    run_here("summary", tmp_path)
    header, rule, *rows, left_out, _ = capsys.readouterr().out.splitlines()
    assert max(map(len, [header, rule, *rows])) <= columns < len(wide.splitlines()[0])
    assert {"evaluation", "method", "measure", "value"} <= {*header.split()}
    assert "60.10 / 80.20" in rows[0]
    shown, missing = header.split(), left_out.removeprefix("--wide also shows ").split(", ")
    assert {*shown, *missing} == {*wide.splitlines()[0].split()}


def test_a_row_says_how_its_neighbours_voted(tmp_path, capsys):
    ways = ["temperature", "distance_function"]
    warm = {"k": 5, "features": "projector", "temperature": 0.5, "distance": "cosine", "deviations": ways}
    plain = {"k": 5, "features": "backbone", "temperature": None, "distance": "euclidean", "deviations": ways}
    out, *_ = summary_of(tmp_path, capsys, result(settings=warm), result(settings=plain))
    assert "k=5, projector, cosine, temperature 0.5, not the paper's temperature, distance_function" in out
    assert "k=5, euclidean, not the paper's temperature, distance_function" in out


def test_papers_figures_stand_beside_matching_rows_only(tmp_path, capsys):
    rows = [
        (result(), "60.70"),
        (result(multi_crop=True), "66.60"),
        (result(max_epochs=800), "64.50"),
        (result(method="mocov2plus"), "55.80"),
        (result(num_prototypes=[3000, 2000, 1000]), "60.70"),
        (result(num_prototypes=[10, 5]), ""),
        (result(settings={"k": 1, "features": "backbone", "deviations": ["k"]}), ""),
        (result(settings={"k": 20, "features": "projector"}), ""),
        (result(encoder="resnet18"), ""),
        (result(dataset="digits"), ""),
        (result(max_epochs=100), ""),
        (result("linear", settings={"config": "adco"}), "68.90"),
        (result("linear", settings={"config": "pcl"}), "69.20"),
        (result("linear", settings={"config": "pcl"}, method="mocov2plus"), ""),
        (result("linear", settings={"config": "moco"}, method="mocov2plus"), "67.50"),
        (result("linear", settings={"config": "pcl", "deviations": ["lr"]}), ""),
        (result("linear", settings={}), ""),
        (result("linear", settings={"config": "pcl", "features": "cached, without augmentation"}), ""),
        (result("semisup", settings={"label_fraction": 0.01}), "48.00 / 75.60"),
        (result("semisup", settings={"label_fraction": 128116 / 1281167}), "64.30 / 86.00"),
        (result("semisup", settings={"label_fraction": 0.05}), ""),
        (result("voc", "voc07", settings={"lr": 0.05}, metrics={"mAP11": 80.0, "mAP": 81.0}), "92.80"),
        (result("places", "places205", settings={"lr": 3.0}), "52.20"),
        (result("places", "places205", settings={"lr": 1.0, "deviations": ["lr"]}), ""),
        (result("zeroshot", "cub"), "26.90"),
    ]
    for number, (one, expected) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, text, _ = summary_of(folder, capsys, one)
        assert text.splitlines()[2].split(" | ")[9] == expected, one


def test_measures_without_labels_of_the_run_stand_beside_its_result(tmp_path, capsys):
    judged = {"rankme": 87.4, "alignment": 0.312, "uniformity": -1.518}
    said = "rank 87, alignment 0.31, uniformity -1.52"
    _, text, page = summary_of(tmp_path, capsys, result(**judged), result(**judged, dead_dimensions=0.25), result())
    cells = sorted(line.split(" | ")[12] for line in text.splitlines()[2:5])
    assert cells == ["", said, f"{said}, dead 25.0%"]
    assert said in page


def test_clustering_has_a_row_for_each_way(tmp_path, capsys):
    ways = [
        {"name": "k-means k=1000", "kind": "k-means", "nmi": 0.5, "ami": 0.4},
        {"name": "hierarchy level 3 (998 prototypes)", "kind": "hierarchy", "level": 3, "nmi": 0.6123, "ami": 0.5},
    ]
    one = result("clustering", settings={"all": ways}, metrics=ways[0], num_prototypes=[3000, 2000, 1000])
    out, text, _ = summary_of(tmp_path, capsys, one)
    assert "0.612 / 0.500" in out
    assert "| NMI / AMI | 0.612 / 0.500 | 0.638 / 0.616 |" in text
    assert "| k-means k=1000 | hcsc, 200 epochs | imagenet |  |  |  | NMI / AMI | 0.500 / 0.400 |  |" in text


def test_clusterings_accuracy_and_the_trees_purities_are_shown(tmp_path, capsys):
    ways = [{"name": "k-means k=3", "kind": "k-means", "nmi": 0.5, "ami": 0.4, "accuracy": 0.7}]
    tree = {"name": "tree of 2 levels", "kind": "tree", "dendrogram_purity": 0.25, "leaf_purity": 0.75}
    one = result("clustering", settings={"all": ways, "tree": tree}, metrics=ways[0])
    _, text, _ = summary_of(tmp_path, capsys, one)
    assert "| NMI / AMI / accuracy | 0.500 / 0.400 / 0.700 |" in text
    assert "| clustering | tree of 2 levels |" in text
    assert "| dendrogram purity / leaf purity | 0.250 / 0.750 |" in text


def test_figures_are_the_papers():
    """Some of each table, typed from the paper."""
    model = {"encoder": "resnet50", "max_epochs": 200}
    for evaluation, dataset, setting, method, more, values in (
        ("linear", "imagenet", "pcl", "hcsc", {}, {"acc1": 69.2}),
        ("linear", "imagenet", "moco", "mocov2plus", {}, {"acc1": 67.5}),
        ("knn", "imagenet", "", "swav", {"multi_crop": True, "max_epochs": 800}, {"acc1": 65.7}),
        ("semisup", "imagenet", "10 % of labels", "swav", {"multi_crop": True}, {"acc1": 65.5, "acc5": 87.5}),
        ("clustering", "imagenet", "hierarchy level 1 of 25000-10000-1000", "hcsc", {}, {"nmi": 0.629, "ami": 0.462}),
        ("places", "places205", "", "hcsc", {"multi_crop": True}, {"acc1": 55.0}),
        ("detect", "voc0712", "", "hcsc", {}, {"AP50_11": 82.5}),
        ("detect", "coco", "", "swav", {"multi_crop": True}, {"AP": 38.6}),
    ):
        found = find(evaluation, dataset, setting, method, model | more)
        assert found is not None
        assert found.values == values
    keys = [(p.evaluation, p.dataset, p.setting, p.method, p.multi_crop, p.epochs) for p in PUBLISHED]
    assert len(keys) == len(set(keys)) == 59


def test_figure_that_the_paper_lacks_is_marked(tmp_path, capsys):
    ways = [{"name": "k-means k=25000", "kind": "k-means", "nmi": 0.5, "ami": 0.4}]
    one = result("clustering", method="mocov2plus", settings={"all": ways}, metrics=ways[0])
    _, text, _ = summary_of(tmp_path, capsys, one)
    assert "| NMI / AMI | 0.500 / 0.400 | - / 0.285 |" in text


def test_ways_of_clustering_are_told_apart(tmp_path, capsys):
    ways = [{"name": "k-means k=3", "kind": "k-means", "nmi": 0.5, "ami": 0.4, "ami_levels": [0.3]}]
    settings = {"all": ways, "split": "val", "features": "projector", "label_groups": [2]}
    _, text, _ = summary_of(tmp_path, capsys, result("clustering", settings=settings, metrics=ways[0]))
    assert "| k-means k=3, projector, validation images |" in text
    assert "| NMI / AMI / AMI, 2 groups | 0.500 / 0.400 / 0.300 |" in text


def test_rows_are_told_apart_by_data_and_by_epochs_really_trained(tmp_path, capsys):
    data = {"data_dir": "/photos/grocery", "val_dir": "test", "val_images": 2485, "classes": 81, "crop_size": 64}
    killed = result(dataset="custom", max_epochs=6, epochs=3) | {"data": data, "warnings": ["collapsed"]}
    _, text, _ = summary_of(tmp_path, capsys, killed)
    cells = text.splitlines()[2].split(" | ")
    assert cells[2:6] == ["hcsc, 3 of 6 epochs", "grocery/test", "81", "2485"]
    assert (cells[6], cells[11]) == ("64", "collapsed")


def test_killed_run_is_not_the_papers(tmp_path, capsys):
    _, text, _ = summary_of(tmp_path, capsys, result(epochs=150))
    assert text.splitlines()[2].split(" | ")[9] == ""


def test_run_that_started_from_given_weights_says_so_and_is_not_the_papers(tmp_path, capsys):
    _, text, _ = summary_of(tmp_path, capsys, result(init_weights="/weights/imagenet.pth"))
    cells = text.splitlines()[2].split(" | ")
    assert cells[2].endswith(" epochs from imagenet.pth")
    assert cells[9] == ""


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_names_are_escaped(tmp_path, capsys):
    nasty = "<script>alert(1)</script>|&"
    _, text, page = summary_of(tmp_path, capsys, result(method=nasty))
    cells = Cells()
    cells.feed(page)
    assert "script" not in cells.tags
    assert f"{nasty}, 200 epochs" in cells.texts
    assert "&lt;script&gt;" in page
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert all(line.replace("\\|", "").count("|") == 15 for line in text.splitlines()[:3])


@pytest.mark.parametrize(
    "nasty",
    [
        "<img src=x onerror=alert(1)>",
        "[click](http://example.org)",
        "![x](http://example.org/x.png)",
        "https://example.org",
        "www.example.org",
        "someone@example.org",
        "`code` **bold** ~~gone~~ \\",
    ],
)
def test_markdown_shows_names_as_they_are(nasty, tmp_path, capsys):
    """Compared with what a renderer of GitHub's Markdown makes of the file: text, no elements."""
    _, text, _ = summary_of(tmp_path, capsys, result(method=nasty))
    cells = Cells()
    cells.feed(MarkdownIt("gfm-like", {"html": True}).render(text))
    assert set(cells.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "p"}
    assert f"{nasty}, 200 epochs" in "".join(cells.texts)


BROKEN = [
    *(("settings", None), ("settings", [1]), ("settings", {}), ("metrics", None), ("metrics", [1]), ("seconds", None)),
    *(
        ("checkpoint", None),
        ("pretraining", None),
        ("metrics", {"acc1": None}),
        ("settings", {"k": 1, "deviations": 1}),
    ),
]


@pytest.mark.parametrize(("name", "value"), BROKEN)
def test_result_that_no_evaluation_wrote_is_named(name, value, tmp_path, refused):
    (tmp_path / "knn.json").write_text(json.dumps(result() | {name: value}))
    assert f"{tmp_path / 'knn.json'}: not what an evaluation writes" in refused("summary", tmp_path)


CORRUPT = ["{", '{"evaluation": "knn", "metrics"', "\x00", "[" * 100_000, f'{{"metrics": 1{"0" * 400}}}']


@pytest.mark.parametrize("content", CORRUPT)
def test_corrupt_result_is_named(content, tmp_path, refused):
    (tmp_path / "good.json").write_text(json.dumps(result()))
    (tmp_path / "knn.json").write_text(content)
    assert f"{tmp_path / 'knn.json'}: not readable as JSON" in refused("summary", tmp_path)


def test_summary_is_a_value(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(result()))
    found = summarise(tmp_path)
    assert found.to_pandas()["evaluation"].tolist() == ["knn"]
    assert found.table().splitlines()[0].split() == list(HEADER)
    assert not list(tmp_path.glob("summary.*")), "nothing is written"
    assert [file.name for file in found.save(tmp_path)] == ["summary.md", "summary.html"]
