"""Replay on a Reverb server: for several machines. Needs the extra `reverb`."""

from t2r_seq.replay.reverb.client import ReverbReplay
from t2r_seq.replay.reverb.server import ReplayServer

__all__ = [
  "ReplayServer",
  "ReverbReplay",
]
