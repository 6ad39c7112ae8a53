"""The examples run as they are."""

import nbformat
import pytest
from nbclient import NotebookClient
from tiny import ROOT

from solo_hcsc.data.digits import lay_out_digits


@pytest.fixture
def digits(tmp_path):
    """A tenth of the digits, which is enough to run on."""
    lay_out_digits(tmp_path)
    for number, file in enumerate(sorted((tmp_path / "digits").rglob("*.png"))):
        if number % 8:
            file.unlink()
    return tmp_path / "digits"


def test_notebook_runs_from_top_to_bottom(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("PHOTOS", str(digits))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    stderr = [out["text"] for out in outputs if out.get("name") == "stderr"]
    assert [text for text in stderr if "IProgress" not in text] == []  # a package asks for ipywidgets
    text = "".join(out.get("text", "") + out.get("data", {}).get("text/plain", "") for out in outputs)
    for said in ("top-1 %", "tree of", "confidence", "most typical", "hcsc", "mocov2plus", "torch.Size([1, 512])"):
        assert said in text
    assert (tmp_path / "out" / "encoder.safetensors").is_file()
