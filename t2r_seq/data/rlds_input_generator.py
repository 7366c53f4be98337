"""The input generator that reads RLDS episodes as TFDS writes them."""

from __future__ import annotations

from typing import Any

import gin

from t2r_seq import records
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator


@gin.configurable
class RldsInputGenerator(DefaultRecordInputGenerator):
  """Feeds RLDS episodes to models whose specs say nothing of RLDS.

  Straight from the TFRecord files; TFDS is not needed. Names get the prefix 'steps/':
  see `records.rlds_specs`. Everything else, windows, shuffle, index, bad records, is as
  in `DefaultRecordInputGenerator`, which reads specs that have `is_concatenated` too.
  """

  def set_feature_specifications(
    self, feature_spec: Any, out_feature_spec: Any = None
  ) -> None:
    """Sets the specs of the features, read from RLDS episodes; see the base class."""
    rlds_spec = records.rlds_specs(feature_spec)
    super().set_feature_specifications(rlds_spec, out_feature_spec)

  def set_label_specifications(
    self, label_spec: Any, out_label_spec: Any = None
  ) -> None:
    """Sets the specs of the labels, read from RLDS episodes; see the base class."""
    super().set_label_specifications(records.rlds_specs(label_spec), out_label_spec)
