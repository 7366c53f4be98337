"""Replay on a Reverb server: for several machines. Needs the extra `reverb`."""

from t2r_seq.replay.reverb.client import ReverbReplay, ReverbWriter
from t2r_seq.replay.reverb.server import ReplayServer, import_reverb

__all__ = [
  "ReplayServer",
  "ReverbReplay",
  "ReverbWriter",
  "import_reverb",
]
