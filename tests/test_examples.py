"""The examples run as they are."""

import nbformat
from nbclient import NotebookClient
from tiny import ROOT, run_here


def test_notebook_shows_a_run(tmp_path, monkeypatch):
    flags = "--method hcsc --dataset digits --crop_size 32 --batch_size 64 --num_workers 0 --accelerator cpu --lr 0.1"
    flags += " --num_prototypes 12 6 3 --queue_size 64 --proto_warmup_epochs 1 --max_epochs 2 --limit_val_batches 0"
    run_here("pretrain", *flags.split(), "--data_dir", tmp_path, "--checkpoint_dir", tmp_path / "runs")
    monkeypatch.setenv("RUN", str(tmp_path / "runs"))
    monkeypatch.setenv("DATA", str(tmp_path / "digits"))
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert [out.data["text/plain"] for out in printed if "data" in out][-1] == "True"
    assert any("image/png" in out.get("data", {}) for out in printed)
    text = "".join(out.get("text", "") for out in printed)
    assert "level 2: 3 prototypes" in text
