"""The bash scripts, really run on tiny data with only sizes, paths and devices overridden."""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import timm
import torch
from tiny import ROOT, only, run_here

from solo_hcsc.cli.commands import ablate, compare, detect, fewlabels, knn, pretrain
from solo_hcsc.data.digits import lay_out_digits
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.evaluation.features import extract
from solo_hcsc.hcsc.options import options_in
from solo_hcsc.settings import take
from solo_hcsc.solo102 import BaseMethod
from solo_hcsc.solo102.repairs.fix import bare_method
from solo_hcsc.study.study import check_alike
from solo_hcsc.study.tables import TABLES, chosen_rows
from solo_hcsc.training.request import check_request
from solo_hcsc.trees.votes import knn_accuracies

LAUNCHERS = ("torchrun.sh", "slurm.sh")  # they run the others, see test_processes.py
SCRIPTS = sorted(path for path in (ROOT / "scripts" / "pretrain").rglob("*.sh") if path.name not in LAUNCHERS)
SMALL = (
    "--max_epochs 2 --batch_size 8 --num_workers 1 --accelerator cpu --queue_size 16 --proj_hidden_dim 16 --lr 0.01"
    " --limit_train_batches 1 --limit_val_batches 1 --num_sanity_val_steps 0 --encoder resnet18"
)
HCSC = " --num_prototypes 4 2 --min_cluster_size 2 --proto_warmup_epochs 1"


def call(script: Path, *flags: str, cwd: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    out = subprocess.run(["bash", script, *flags], cwd=cwd, env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def flags_of(script: Path) -> list[str]:
    """The flags that a script gives to pretraining, with its first argument filled in."""
    _, text = re.split(r"\n(?:solo-hcsc|\S+ -m solo_hcsc) pretrain ", script.read_text())
    text = text.replace("$1", "custom")
    return [word for word in shlex.split(text) if word.strip() and "@" not in word]


def commands_of(script: Path, *arguments: str) -> list[tuple[str, list[str]]]:
    """The commands that a script runs and their flags, as bash makes them; set-up is left out."""
    seen = "exec 3>&1 >/dev/null\n"
    for program in ("solo-hcsc", "python"):
        seen += f"{program}() {{ printf '%s\\037' {program} \"$@\" >&3; printf '\\036' >&3; }}\n"
    text = seen + re.sub(r"^(source|bash) ", ": ", script.read_text(), flags=re.M)
    out = subprocess.run(["bash", "-c", text, "bash", *arguments], capture_output=True, text=True, check=True)
    commands = [command.split("\x1f")[:-1] for command in out.stdout.split("\x1e")[:-1]]
    return [(name, flags) for _, name, *flags in commands]


EVALUATIONS = sorted(
    path
    for folder in ("clustering", "detect", "knn", "linear", "places", "semisup", "voc", "zeroshot")
    for path in (ROOT / "scripts" / folder).rglob("*.sh")
)


@pytest.mark.parametrize("script", EVALUATIONS, ids=lambda s: str(s.relative_to(ROOT / "scripts").with_suffix("")))
def test_flags_of_every_evaluation_script_make_sense(script):
    wanted = max(int(number) for number in re.findall(r'"\$(\d)"', script.read_text()))
    more = ["--label_fraction", "0.01"] if "semisup" in script.parts else []
    ((command, flags),) = commands_of(script, *["cifar10" if "cifar" in str(script) else "x"] * wanted, *more)
    assert command == script.relative_to(ROOT / "scripts").parts[0]
    import_module(f"solo_hcsc.cli.commands.{command}").parse(flags)


PAPER = {
    "linear/imagenet/linear.sh": (100, 5.0, "step", [60, 80], 256),
    "semisup/imagenet/semisup.sh": (70, 0.005, "step", [30, 60], 256),
    "places/places.sh": (100, 3.0, "cosine", None, 256),
    "voc/voc.sh": (100, 0.05, "cosine", None, 16),
}


@pytest.mark.parametrize("script", PAPER)
def test_scripts_and_defaults_are_the_papers_settings(script):
    more = ["--label_fraction", "0.01"] if "semisup" in script else []
    ((command, flags),) = commands_of(ROOT / "scripts" / script, "x", *more)
    plain = ["--pretrained_feature_extractor", "x", *more, *(["--dataset", "imagenet"] if "imagenet" in script else [])]
    plain += ["--config", "pcl"] if command == "linear" else []
    for words in (flags, plain):
        args = import_module(f"solo_hcsc.cli.commands.{command}").parse(words)
        assert (args.max_epochs, args.lr, args.scheduler, args.lr_decay_steps, args.batch_size) == PAPER[script]
        assert (args.weight_decay, args.optimizer) == (0.0, "sgd")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: f"{s.parent.name}-{s.stem}")
def test_flags_of_every_script_make_sense(script):
    check_request(pretrain.parse(flags_of(script)))


@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_comparison_scripts_compare_like_with_like(data):
    (*_, (command, flags)) = commands_of(ROOT / "scripts" / "compare" / f"{data}.sh")
    assert command == "compare"
    _, methods = compare.parse(flags)
    arguments = {name: pretrain.parse(words) for name, words in methods.items()}
    for args in arguments.values():
        check_request(args)
    check_alike(arguments)
    assert list(arguments) == ["hcsc", "mocov2plus", "swav"]


@pytest.mark.parametrize("data", ["digits", "cifar10"])
@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_an_ablation_script_makes_sense(data, table):
    (*_, (command, words)) = commands_of(ROOT / "scripts" / "ablate" / f"{data}.sh", table)
    assert command == "ablate"
    flags, shared = ablate.parse(words)
    base = pretrain.parse(shared)
    rows = chosen_rows(flags.table, TABLES[flags.table](options_in(vars(base)).num_prototypes), flags.rows)
    assert len(rows) >= {"tree": 2, "ceiling": 3, "images": 2}.get(table, 4)
    for more in rows.values():
        settings = base.but(**more)
        check_request(settings)
        options_in(vars(settings)).check_images({"digits": 1437, "cifar10": 10_000}[data])


@pytest.mark.parametrize("script", [s for s in SCRIPTS if "hcsc" in s.name], ids=lambda s: f"{s.parent.name}-{s.stem}")
def test_hcsc_script_trains(script, images, tmp_path):
    flags = (SMALL + HCSC).split()
    # imagenet's classes are fixed by the framework; the folder is not
    data = ["--dataset", "custom", "--data_dir", str(images), "--train_dir", "train", "--val_dir", "val"]
    sizes = ["--crop_size", "32"]
    if "multicrop" in script.name:
        views = len(pretrain.parse(flags_of(script)).crop_size)
        sizes = ["--crop_size", *"32 28 24 20 16".split()[:views]]
    if script.parent.name == "custom":  # one as a user calls it; the others save their imports
        call(script, str(images), "train", *flags, *data, *sizes, cwd=tmp_path)
    else:
        run_here("pretrain", *flags_of(script), *flags, *data, *sizes, "--checkpoint_dir", tmp_path)
    assert only(tmp_path, "*.ckpt").name.startswith("hcsc-")


def test_evaluation_scripts_run_on_a_checkpoint(images, tmp_path):
    flags = [*SMALL.split(), "--crop_size", "32", "--data_dir", str(images), "--train_dir", "train"]
    run_here(
        "pretrain", *flags_of(ROOT / "scripts/pretrain/custom/mocov2plus.sh"), *flags, "--checkpoint_dir", tmp_path
    )
    data = [str(images), "train", "val", "."]
    call(ROOT / "scripts/knn/custom/knn.sh", *data, "--crop_size", "32", "--num_workers", "0", "--k", "3", cwd=tmp_path)
    flags = "--crop_size 32 --max_epochs 1 --batch_size 8 --num_workers 0".split()
    call(ROOT / "scripts/linear/custom/linear.sh", *data, *flags, cwd=tmp_path)
    assert only(tmp_path, "knn-custom-*.json")
    assert only(tmp_path, "linear.json")


def knn_accuracy(encoder: torch.nn.Module, digits: Path, k: int) -> float:
    flags = "--dataset digits --crop_size 32 --num_workers 0 --pretrained_feature_extractor unused --data_dir".split()
    args = knn.parse([*flags, str(digits)])
    source, loading = take(ImageSource, args).located(needs_val=True), take(Loading, args)
    _, transform = evaluation_transforms(source)
    cpu = torch.device("cpu")
    bank, queries = (
        extract(encoder.eval(), images, loading, "", cpu) for images in evaluation_sets(source, transform, transform)
    )
    return knn_accuracies(bank.x, bank.y, queries.x, queries.y, [k])[k][0]


def test_quickstarts_recipe_learns_what_an_untrained_encoder_does_not_know(tmp_path):
    """A third of the quickstart's epochs, judged with K=200: 88 to 93 % over seeds, where random features have 81."""
    script = (ROOT / "scripts" / "quickstart.sh").read_text()
    text = script.partition("\nsolo-hcsc pretrain")[2].partition("--checkpoint")[0]
    flags = [word for word in shlex.split(text) if word.strip()]
    short = "--max_epochs 5 --proto_warmup_epochs 2 --num_workers 0 --accelerator cpu --limit_val_batches 0".split()
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "runs", "--data_dir", tmp_path, *short)
    trained = load_encoder(only(tmp_path / "runs", "*.ckpt"), None, 32).module
    torch.manual_seed(0)
    untrained = bare_method(BaseMethod).encoder
    found = [knn_accuracy(encoder, tmp_path, k=200) for encoder in (untrained, trained)]
    assert found[0] < 85
    assert found[1] > 86


def test_every_evaluation_runs_on_digits_in_one_script(tmp_path, monkeypatch):
    """The commands of evaluate_all.sh, as bash makes them, in this process, with fewer epochs and images."""
    commands = commands_of(ROOT / "scripts" / "evaluate_all.sh")
    names = [name for name, _ in commands]
    assert names == ["pretrain", "knn", "clustering", "linear", "linear", "semisup", "semisup", "summary"]
    monkeypatch.chdir(tmp_path)
    digits = lay_out_digits(tmp_path / "datasets")
    for folder in digits.glob("*/*"):
        for file in sorted(folder.iterdir())[25 if folder.parent.name == "train" else 3 :]:
            file.unlink()
    quick = "--num_workers 0 --accelerator cpu".split()
    few = {
        "pretrain": "--max_epochs 2 --proto_warmup_epochs 1 --limit_train_batches 2 --min_cluster_size 2",
        "linear": "--max_epochs 1 --batch_size 64",
        "semisup": "--max_epochs 1 --check_val_every_n_epoch 1 --label_fraction 0.1",
    }
    for name, flags in commands:
        run_here(name, *flags, *(few.get(name, "").split()), *(quick if name != "summary" else []))
    text = only(tmp_path, "summary.md").read_text()
    for row in (
        "| knn | k=",
        "| linear | adco, not the paper's lr",
        "| linear | pcl, not the paper's batch_size",
        "| semisup | 10 % of labels",
    ):
        assert row in text
    assert "NMI / AMI / accuracy / AMI, 3 groups / AMI, 2 groups" in text
    assert "hierarchy level 3 (" in text


def test_runs_that_are_judged_differ_by_method_and_setting_only_and_never_see_test_images():
    """Every command is parsed as a user's would be."""
    runs = [flags for name, flags in commands_of(ROOT / "scripts" / "judging" / "cifar10.sh") if name == "pretrain"]
    parsed = [pretrain.parse(flags) for flags in runs]
    assert len({flags.name for flags in parsed}) == len(parsed) == 15
    assert {flags.method for flags in parsed} == {"hcsc", "mocov2plus", "swav", "simclr", "vicreg"}
    assert {(flags.train_dir, flags.val_dir, flags.max_epochs, flags.knn_eval) for flags in parsed} == {
        (Path("train"), Path("val"), 8, True)
    }


def test_warm_start_goes_from_weights_to_a_model_and_embeddings(images, tmp_path, monkeypatch):
    commands = commands_of(ROOT / "scripts" / "warm_start" / "cifar10.sh")
    chain = ["pretrain", "knn", "linear", "export", "-c", "embed"]
    assert [name for name, _ in commands] == ["scripts/data/cifar10.py", "knn", *chain * 3, "summary"]
    for name, flags in commands:
        if name == "pretrain":
            check_request(pretrain.parse(flags))
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_efficientnet").state_dict(), weights)
    tiny = f"--encoder timm/test_efficientnet --init_weights {weights} --data_dir {images} --accelerator cpu"
    few = {
        "pretrain": f"{tiny} --batch_size 8 --queue_size 16 --num_prototypes 4 2 --min_cluster_size 2 --crop_size 32",
        "knn": "--k 5 --accelerator cpu",
        "linear": "--max_epochs 1 --batch_size 8 --accelerator cpu",
        "embed": "--neighbours 3 --accelerator cpu",
    }
    for name, flags in commands[2:8]:
        if name != "-c":
            run_here(name, *flags, *few.get(name, "").split())
    file = only(tmp_path, "encoder.safetensors")
    timm.create_model("test_efficientnet", num_classes=0, checkpoint_path=str(file))
    assert only(tmp_path, "embeddings.parquet").stat().st_size > 0


def test_measurement_of_few_labels_makes_sense():
    _, _, *commands = commands_of(ROOT / "scripts" / "fewlabels" / "cifar10.sh")
    assert [name for name, _ in commands] == ["pretrain", "pretrain", "fewlabels", "fewlabels", "fewlabels"]
    for name, flags in commands:
        if name == "pretrain":
            check_request(pretrain.parse(flags))
        else:
            assert fewlabels.parse(flags).val_dir == Path("test")


@pytest.mark.parametrize(
    ("script", "table"),
    [
        *((f"tree/{data}.sh", table) for data in ("cifar10", "grocery") for table in ("tree", "ceiling")),
        ("images/grocery.sh", "--max_epochs=3"),
    ],
)
def test_studies_are_pairs_that_are_judged_on_test_images(script, table):
    (*_, (command, flags)) = commands_of(ROOT / "scripts" / script, table)
    assert command == "ablate"
    study, words = ablate.parse(flags)
    assert (study.test_dir, len(study.seeds)) == (Path("test"), 5)
    for more in TABLES[study.table]((3, 2)).values():
        check_request(pretrain.parse(words).but(**more))


def test_searched_comparison_draws_the_same_for_nobody_and_sets_the_same_for_all():
    (*_, (command, flags)) = commands_of(ROOT / "scripts" / "tree" / "search.sh")
    assert command == "compare"
    study, methods = compare.parse(flags)
    assert (study.search, study.budget, study.test_dir, len(study.seeds)) == (8, "seconds", Path("test"), 5)
    parsed = {name: pretrain.parse(words) for name, words in methods.items()}
    check_alike(parsed)
    assert not any({"lr", "temperature"} & args.typed for args in parsed.values()), "they are drawn"


def test_detectors_of_digits_differ_by_the_encoders_weights_only():
    commands = [one for one in commands_of(ROOT / "scripts" / "detect_digits.sh", "--seed", "7") if "/" not in one[0]]
    assert [name for name, _ in commands] == ["pretrain", "detect", "detect", "summary"]
    check_request(pretrain.parse(commands[0][1]))
    trained, random = (detect.parse(flags) for _, flags in commands[1:3])
    assert vars(random) == vars(trained) | {"random_weights": True}
    assert (trained.seed, trained.lr_steps) == (7, (75, 92))
