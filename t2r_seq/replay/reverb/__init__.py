"""Replay on a Reverb server: for several machines. Needs the extra `reverb`."""

from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.reverb_replay import ReverbReplay
from t2r_seq.replay.reverb.server import ReplayServer
from t2r_seq.replay.reverb.writer import ReverbWriter

__all__ = [
  "ReplayServer",
  "ReverbReplay",
  "ReverbWriter",
  "import_reverb",
]
