"""Find the checkpoint that a run goes on from, and refuse one that it cannot."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule

from solo_hcsc.encoders.checkpoints import finished_epochs, load_checkpoint, steps_and_time, weights_in
from solo_hcsc.encoders.recorded import recorded_flags
from solo_hcsc.errors import UserError
from solo_hcsc.files import read_json
from solo_hcsc.launch import is_main_process
from solo_hcsc.progress import note
from solo_hcsc.training.locking import holder, refusal
from solo_hcsc.training.saving import as_recorded
from solo_hcsc.training.settings import Loop, Resume

# What may differ between a run and its continuation: where things are written, what is shown, when to stop.
_MAY_DIFFER = frozenset(
    "auto_resume resume_from_checkpoint auto_resumer_max_hours checkpoint_dir checkpoint_frequency save_checkpoint"
    " checkpoint_every_n_steps keep_checkpoints keep_best num_workers logger wandb offline enable_progress_bar"
    " progress_bar_refresh_rate log_every_n_steps profiler detect_anomaly num_sanity_val_steps max_steps max_time"
    " auto_umap auto_umap_dir auto_umap_frequency debug_augmentations images pictures".split()
)


class FinishedError(UserError):
    """The checkpoint to resume from is the run's last."""

    def __init__(self, checkpoint: Path, message: str) -> None:
        super().__init__(f"{checkpoint} {message}")
        self.checkpoint = checkpoint


def find_resume(resume: Resume, runs: Path, loop: Loop, model: LightningModule) -> Path | None:
    """Return the checkpoint that was named or, with `auto_resume`, the newest whole one of a run with these settings.

    `runs`: the folder of the method's runs.
    """
    if resume.resume_from_checkpoint is not None:
        check_resume(resume.resume_from_checkpoint, model, loop)
        _note_other_images(resume.resume_from_checkpoint, resume)
        return resume.resume_from_checkpoint
    if not resume.auto_resume:
        return None
    alike = list(_runs_of(runs, resume))
    for run in alike if is_main_process() else ():  # the others find that this run's own main process has locked it
        owner = holder(run)
        if owner:
            raise UserError(refusal(run, owner))
    youngest = time.time() - resume.auto_resumer_max_hours * 3600
    matching = [(steps_and_time(path), path) for run in alike for path in run.glob("*.ckpt")]
    young = [(reached, path) for reached, path in matching if reached[1] >= youngest]
    if matching and not young:
        oldest = f"{matching[0][1]} is older than `auto_resumer_max_hours` {resume.auto_resumer_max_hours}"
        note(f"`auto_resume`: {oldest}")
    for _, path in sorted(young, reverse=True):
        try:
            check_resume(path, model, loop)
            _note_other_images(path, resume)
            return path
        except FinishedError:
            raise
        except UserError as broken:
            note(f"`auto_resume`: {broken}; looking for an older one")
    note(f"`auto_resume`: no checkpoint to go on from below {runs}; starting anew")
    return None


def _note_other_images(path: Path, resume: Resume) -> None:
    """Note that the images are others: they may be on purpose, but not unnoticed."""
    before, now = recorded_flags(path).get("images"), resume.recorded.get("images")
    if before and now and before != now:
        note(f"the training images are not those that {path} was trained on (names, sizes or classes of files differ)")


def _runs_of(folder: Path, resume: Resume) -> Iterator[Path]:
    """Yield the folders of runs with these flags that have checkpoints or are trained now; note why others are none."""
    ours = as_recorded(resume.recorded)
    resolved = {name for value in ours.values() if isinstance(value, dict) for name in value}  # what a preset filled in
    compared = ours.keys() - resolved - _MAY_DIFFER
    for file in folder.rglob("args.json"):
        if not any(file.parent.glob("*.ckpt")) and holder(file.parent) is None:
            continue
        try:
            theirs = read_json(file)
            # What an older version did not record is no difference unless it was asked for.
            asked = [name for name in ours if name in compared and (name in theirs or name in resume.given)]
            differing = [name for name in asked if ours[name] != theirs.get(name)]
        except (UserError, AttributeError) as error:
            note(f"`auto_resume`: {file} cannot be read ({error}); leaving that run alone")
            continue
        if not differing:
            yield file.parent
        else:
            name, value = _first_difference(differing, ours, theirs)
            note(f"`auto_resume`: leaving {file.parent} alone, which had `{name}` {value}")


def _first_difference(differing: list[str], ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, Any]:
    """Return a setting's name and its value there; a method's options are settings themselves."""
    name, value = differing[0], theirs.get(differing[0])
    if isinstance(ours[name], dict) and isinstance(value, dict):
        return _first_difference([key for key in ours[name] if ours[name][key] != value.get(key)], ours[name], value)
    return name, " ".join(map(str, value)) if isinstance(value, list) else value


def check_resume(path: Path, model: LightningModule, loop: Loop) -> None:
    """Refuse a checkpoint that cannot be read or gone on from, before anything is written."""
    checkpoint = load_checkpoint(path)
    for name, options in getattr(model, "resolved_options", {}).items():
        saved = checkpoint.get(name)
        if not isinstance(saved, dict):
            raise UserError(f"{path}: not a checkpoint of this run's method (it has no {name})")
        other = [key for key in options if saved.get(key) != options[key]]
        if other:
            raise UserError(
                f"{path} was trained with `{other[0]}` {saved.get(other[0])}, not {options[other[0]]}; "
                "use its flags, or start anew"
            )
    finished = finished_epochs(checkpoint)
    if finished is not None and finished >= loop.max_epochs:
        raise FinishedError(path, f"has finished epoch {finished} of {loop.max_epochs}: raise `max_epochs`")
    steps = checkpoint.get("global_step")
    if isinstance(steps, int) and 0 < loop.max_steps <= steps:
        raise FinishedError(path, f"has done step {steps} of {loop.max_steps}: raise `max_steps`")
    state = weights_in(checkpoint, path)
    model.on_load_checkpoint(checkpoint)  # makes the buffers that SwAV and DeepCluster v2 else make at the start
    known = model.state_dict()
    tensors = {key: value for key, value in known.items() if isinstance(value, torch.Tensor)}
    missing = [key for key in tensors if key not in state]
    unexpected = [key for key in state if key not in known]
    other = [key for key in tensors if key in state and tensors[key].shape != getattr(state[key], "shape", None)]
    if missing or unexpected or other:
        raise UserError(
            f"{path}: not a checkpoint of this run's method and encoder "
            f"(first difference: {(missing + unexpected + other)[0]}); use the flags it was trained with"
        )
    lacking = [key for key in ("pytorch-lightning_version", "optimizer_states") if not checkpoint.get(key)]
    if lacking or finished is None:
        raise UserError(
            f"{path}: has weights but not where training was ({(lacking or ['loops'])[0]}); "
            "it can be evaluated, not resumed"
        )


def check_same_flags(path: Path, flags: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than the evaluation began with: its result would not tell."""
    ours, theirs = as_recorded(flags), recorded_flags(path)
    elsewhere = {"pretrained_feature_extractor", "data_dir", "name"}  # the encoder's hash is among the flags
    for name in sorted(ours.keys() - _MAY_DIFFER - elsewhere - {"max_epochs"}):
        if name in theirs and ours[name] != theirs[name]:
            raise UserError(
                f"{path} was trained with `{name}` {theirs[name]}, not {ours[name]}; use its flags, or start anew"
            )
