"""Checkpoints have the encoder's weights under the name of solo-learn 1.0.6 too, and nobody here sees it."""

import torch
from tiny import only

from solo_hcsc.encoders.checkpoints import load_checkpoint, weights_in
from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.encoders.twins import without_twins
from solo_hcsc.training.saving import WholeFiles


def test_both_names_mean_one_tensor_that_is_stored_once(hcsc_run, tmp_path):
    file = only(hcsc_run, "*ep=1.ckpt")
    content = torch.load(file, weights_only=True)
    state = content["state_dict"]
    encoder = [name.removeprefix("encoder.") for name in state if name.startswith("encoder.")]
    assert len(encoder) == 120
    assert all(state[f"backbone.{name}"].data_ptr() == state[f"encoder.{name}"].data_ptr() for name in encoder)
    torch.save(content | {"state_dict": without_twins(state)}, tmp_path / "once.ckpt")
    assert file.stat().st_size < 1.01 * (tmp_path / "once.ckpt").stat().st_size


def test_readers_see_one_name(hcsc_run):
    file = only(hcsc_run, "*ep=1.ckpt")
    seen = WholeFiles().load_checkpoint(file, weights_only=True)["state_dict"]
    assert not any(name.startswith("backbone.") for name in seen)
    assert seen.keys() == weights_in(load_checkpoint(file), file).keys()
    assert seen._metadata  # torch's notes of versions, by which it loads old states
    assert "backbone" not in load_encoder(file).taken


def test_names_as_main_linear_takes_them(hcsc_run):
    """What lies below `backbone.`; names with `encoder` are those of old checkpoints, to be renamed."""
    file = only(hcsc_run, "*ep=1.ckpt")
    state = torch.load(file, weights_only=True)["state_dict"]
    taken = {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}
    ours = load_encoder(file).module
    assert ours.load_state_dict(taken) is not None
    assert taken.keys() == ours.state_dict().keys()
