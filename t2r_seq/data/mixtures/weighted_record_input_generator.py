"""The input generator that mixes sets of record files by weight."""

from __future__ import annotations

from typing import Any

import gin

from t2r_seq import records
from t2r_seq.data.mixtures.mixture_arguments import Weights
from t2r_seq.data.mixtures.mixture_input_generator import MixtureInputGenerator
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator
from t2r_seq.records import file_patterns as patterns_lib


@gin.configurable
class WeightedRecordInputGenerator(MixtureInputGenerator):
  """Mixes TFRecord files, each file pattern with a weight of its own.

  After Tensor2Robot's class of that name, whose batches held the patterns in proportion
  on average; here each of them does, see `MixtureInputGenerator`.
  """

  def __init__(
    self,
    file_patterns: records.FilePatterns,
    weights: Weights = None,
    batch_size: int = 32,
    seed: int = 0,
    **record_arguments: Any,
  ) -> None:
    """Creates the generator.

    Args:
      file_patterns: a comma-separated string or a list of patterns; each pattern is a
        source, which has the pattern as its name.
      weights: of the patterns, in their order or by pattern; 'by_size': as many as a
        pass has examples; None: all equal.
      batch_size: examples in a batch, over all replicas together.
      seed: of all shuffles.
      **record_arguments: of `DefaultRecordInputGenerator`, for every pattern.
    Raises:
      SpecError: no file patterns, not as many weights as these, or what the bases
        refuse.
    """
    place = f"{type(self).__name__}: file_patterns"
    file_patterns = patterns_lib.check_file_patterns(place, file_patterns)
    sources = {
      pattern: DefaultRecordInputGenerator(pattern, **record_arguments)
      for pattern in records.split_file_patterns(file_patterns)
    }
    super().__init__(sources, weights, batch_size, seed)
