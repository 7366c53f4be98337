"""The command line, `t2r_seq COMMAND`: a module for each command, or a few alike."""

from t2r_seq.cli.main import main

__all__ = ["main"]
