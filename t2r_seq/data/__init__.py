"""Input generators: tf.data pipelines that feed a model what its specs declare."""

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
from t2r_seq.data.input_generator import (
  AbstractInputGenerator,
  add_presence_specs,
)
from t2r_seq.data.loaders import WindowLoader
from t2r_seq.data.mixtures import (
  MixtureInputGenerator,
  WeightedRecordInputGenerator,
)
from t2r_seq.data.plan import Plan
from t2r_seq.data.record_input_generator import (
  DefaultRecordInputGenerator,
  FractionalRecordInputGenerator,
  MultiEvalInputGenerator,
  MultiEvalRecordInputGenerator,
  RldsInputGenerator,
)
from t2r_seq.data.stores import StoreInputGenerator, StoreWindowLoader
from t2r_seq.data.streams import StreamReport, streamed_windows

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
  "MultiEvalInputGenerator",
  "MultiEvalRecordInputGenerator",
  "Plan",
  "RldsInputGenerator",
  "StoreInputGenerator",
  "StoreWindowLoader",
  "StreamReport",
  "WeightedRecordInputGenerator",
  "WindowLoader",
  "add_presence_specs",
  "streamed_windows",
  "windows_of",
]
