"""Which of other packages' lines a user sees."""

import logging
import sys
import warnings

import pytest

from solo_hcsc.quiet import quiet


@pytest.mark.parametrize(("options", "muted"), [([], True), (["ignore"], True), (["default"], False)])
def test_logs_are_muted_unless_warnings_are_asked_for(options, muted, monkeypatch):
    """PYTHONWARNINGS=ignore showed Lightning's line on `weights_only` in every epoch of `solo-hcsc linear`."""
    monkeypatch.setattr(sys, "warnoptions", options)
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    try:
        with warnings.catch_warnings():
            quiet()
        assert (logging.root.manager.disable == logging.WARNING) is muted
    finally:
        logging.disable(before)
