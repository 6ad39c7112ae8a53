"""Runs of any method that have not begun, which take a second instead of many."""

import json
from pathlib import Path

from tiny import SMALL

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.training.pretraining import prepare, resolve
from solo_hcsc.training.saving import WholeFiles, as_recorded

OWN = {
    "hcsc": "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 16",
    "swav": "--num_prototypes 8 --queue_size 16",
    "deepclusterv2": "--num_prototypes 4 4",
    "dino": "--num_prototypes 8 --proj_hidden_dim 16 --proj_output_dim 8",
    **dict.fromkeys(("mocov2plus", "nnbyol", "nnclr", "nnsiam", "ressl"), "--queue_size 16"),
    "wmse": "--whitening_size 8 --proj_output_dim 4",
}


def untrained_run(method: str, custom: list[str], folder: Path, *flags: str) -> Path:
    """What a run of ours writes, before its first step."""
    words = [*custom, *SMALL, "--method", method, *OWN.get(method, "").split(), "--max_epochs", "2", *flags]
    work = prepare(resolve(parse([*words, "--checkpoint_dir", str(folder)])))
    folder.mkdir(parents=True)
    checkpoint = {"state_dict": work.model.state_dict(), "epoch": 0, "pytorch-lightning_version": "2.6.0"}
    work.model.on_save_checkpoint(checkpoint)
    WholeFiles().save_checkpoint(checkpoint, folder / "x-ep=0.ckpt")
    (folder / "args.json").write_text(json.dumps(as_recorded(work.recorded)))
    return folder
