"""Input generators: tf.data pipelines of the batches that a model's specs declare."""

from t2r_seq.data.data_service import DataService
from t2r_seq.data.episodes_input_generator import (
  EpisodesInputGenerator,
  LeRobotInputGenerator,
  windows_of,
)
from t2r_seq.data.following import Follow
from t2r_seq.data.generator_input_generator import (
  DefaultConstantInputGenerator,
  DefaultRandomInputGenerator,
  GeneratorInputGenerator,
)
from t2r_seq.data.input_generator import AbstractInputGenerator
from t2r_seq.data.mixtures import (
  MixtureInputGenerator,
  WeightedRecordInputGenerator,
)
from t2r_seq.data.record_input_generator import (
  DefaultRecordInputGenerator,
  FractionalRecordInputGenerator,
  MultiEvalRecordInputGenerator,
  RldsInputGenerator,
)
from t2r_seq.data.stores import StoreInputGenerator, StoreWindowLoader

__all__ = [
  "AbstractInputGenerator",
  "DataService",
  "DefaultConstantInputGenerator",
  "DefaultRandomInputGenerator",
  "DefaultRecordInputGenerator",
  "EpisodesInputGenerator",
  "Follow",
  "FractionalRecordInputGenerator",
  "GeneratorInputGenerator",
  "LeRobotInputGenerator",
  "MixtureInputGenerator",
  "MultiEvalRecordInputGenerator",
  "RldsInputGenerator",
  "StoreInputGenerator",
  "StoreWindowLoader",
  "WeightedRecordInputGenerator",
  "windows_of",
]
