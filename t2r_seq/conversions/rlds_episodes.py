"""TFRecord files of RLDS episodes, as TFDS writes them, read without TFDS."""

from __future__ import annotations

from t2r_seq import records, specs
from t2r_seq.conversions.record_episodes import RecordEpisodes


class RldsEpisodes(RecordEpisodes):
  """Reads an RLDS episode from a tf.train.Example."""

  def __init__(
    self,
    patterns: records.FilePatterns,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
  ) -> None:
    """Finds the files; see `RecordEpisodes`, and `records.rlds_specs` for the names."""
    rlds_spec = None if spec is None else records.rlds_specs(spec)
    super().__init__(patterns, rlds_spec, compression)
