"""Convolutions that skip padding compute what torch's do."""

from itertools import product

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from solo_hcsc.solo102 import BaseMethod
from solo_hcsc.solo102.repairs.fix import bare_method
from solo_hcsc.training.convolutions import FastConvolutions, Trimmed, make_fast


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "groups"),
    [*product((1, 3, 7), (1, 2), (0, 1, 3), (1, 2)), ((3, 5), (2, 1), (1, 2), 1)],
)
def test_output_and_gradients_are_those_of_the_whole_kernel(kernel, stride, padding, groups):
    for height, width in ((1, 1), (1, 2), (2, 2), (3, 1), (4, 4), (9, 8)):
        torch.manual_seed(0)
        whole = nn.Conv2d(4, 6, kernel, stride, padding, groups=groups, dtype=torch.double)
        trimmed = Trimmed(4, 6, kernel, stride, padding, groups=groups, dtype=torch.double)
        trimmed.load_state_dict(whole.state_dict())
        images = torch.randn(3, 4, height, width, dtype=torch.double)
        try:
            expected = whole(images)
        except RuntimeError:  # the kernel is larger than the padded image
            continue
        found = trimmed(images)
        torch.testing.assert_close(found, expected)
        for out in (found, expected):
            out.square().sum().backward()
        torch.testing.assert_close(trimmed.weight.grad, whole.weight.grad)
        torch.testing.assert_close(trimmed.bias.grad, whole.bias.grad)


@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_every_size_padding_and_stride_has_the_shape_and_the_values_of_torch(dilation):
    """Along one axis: the other has rules of its own."""
    trimmed_ones = compared = 0
    for kernel, stride, padding, size in product(range(1, 6), range(1, 5), range(7), range(1, 8)):
        if size + 2 * padding < dilation * (kernel - 1) + 1:
            continue  # torch refuses a kernel that is larger than the padded image
        settings = {"stride": (stride, 1), "padding": (padding, 0), "dilation": (dilation, 1), "dtype": torch.double}
        whole, trimmed = (conv(1, 2, (kernel, 1), **settings) for conv in (nn.Conv2d, Trimmed))
        trimmed.load_state_dict(whole.state_dict())
        images = torch.arange(1.0, 2 * size + 1, dtype=torch.double).reshape(1, 1, size, 2)
        torch.testing.assert_close(trimmed(images), whole(images), msg=f"{whole} on {size}")
        torch.testing.assert_close(trimmed(images[0]), whole(images[0]))  # unbatched
        trimmed_ones += trimmed._used(0, size) != (0, kernel)
        compared += 1
    assert 50 < trimmed_ones < compared


def test_a_kernel_larger_than_the_padded_image_is_refused_as_by_torch():
    for conv in (nn.Conv2d, Trimmed):
        with pytest.raises(RuntimeError, match="size can't be greater than actual input size"):
            conv(1, 1, 5, padding=1)(torch.ones(1, 1, 2, 2))


@pytest.mark.parametrize("encoder", ["resnet18", "vit_tiny"])
def test_encoder_trains_as_before_and_its_weights_have_the_same_names(encoder):
    torch.manual_seed(0)
    settings = {"cifar": False} if "resnet" in encoder else {"cifar": False, "img_size": 32, "patch_size": 8}
    plain, fast = (bare_method(BaseMethod, encoder=encoder, backbone_args=settings).encoder for _ in range(2))
    fast.load_state_dict(plain.state_dict())
    make_fast(fast)
    assert "resnet" not in encoder or any(isinstance(module, Trimmed) for module in fast.modules())
    images = torch.randn(8, 3, 32, 32)
    outputs = [model(images) for model in (plain, fast)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    for out in outputs:
        out.square().mean().backward()
    for (name, expected), (other, found) in zip(plain.named_parameters(), fast.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-5)
    assert {name: value.shape for name, value in fast.state_dict().items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }


class Net(pl.LightningModule):
    """One plain convolution and one that is not; notes which class they are of in each step."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.plain, self.other = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect")
        self.fails = fails
        self.seen: list[tuple[type, type]] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.seen.append((type(self.plain), type(self.other)))
        if self.fails:
            raise ValueError("on the way")
        return self.other(self.plain(batch)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("fails", [False, True])
def test_convolutions_are_plain_again_after_a_fit_and_the_log_says_what_was_done(fails, tmp_path, capsys):
    model = Net(fails)
    trainer = pl.Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[FastConvolutions()],
    )
    images = torch.utils.data.DataLoader(torch.randn(2, 3, 8, 8), batch_size=2)
    if fails:
        with pytest.raises(ValueError, match="on the way"):
            trainer.fit(model, images)
    else:
        trainer.fit(model, images)
        trainer.save_checkpoint(tmp_path / "x.ckpt")
        assert torch.load(tmp_path / "x.ckpt", weights_only=True)["state_dict"].keys() == model.state_dict().keys()
    assert model.seen == [(Trimmed, nn.Conv2d)]
    assert {type(module) for module in (model.plain, model.other)} == {nn.Conv2d}
    assert capsys.readouterr().out.count("convolutions") == 0
