"""The command line, `t2r_seq COMMAND`: one module per command or group."""

from t2r_seq.cli.main import main

__all__ = ["main"]
