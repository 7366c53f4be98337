"""The command line: `t2r_seq train | collect | inspect | predict`."""

from t2r_seq.cli.main import main

__all__ = ["main"]
