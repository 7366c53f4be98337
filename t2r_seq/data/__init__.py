"""Input generators: tf.data pipelines that feed a model what its specs ask for."""

from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.data_service import DataService, distribute_by_service
from t2r_seq.data.fractional_record_input_generator import (
  FractionalRecordInputGenerator,
)
from t2r_seq.data.generator_input_generator import (
  DefaultConstantInputGenerator,
  DefaultRandomInputGenerator,
  GeneratorInputGenerator,
)
from t2r_seq.data.indexed.indexed_records import IndexedRecordLoader, indexed_records
from t2r_seq.data.lerobot_input_generator import LeRobotInputGenerator
from t2r_seq.data.loaders.numpy_batches import NumpyBatches, numpy_batches_in_order
from t2r_seq.data.loaders.ordered_batches import batches_in_order
from t2r_seq.data.loaders.store_loader import StoreWindowLoader, store_windows
from t2r_seq.data.loaders.window_order import WindowOrder
from t2r_seq.data.mixtures import (
  MixtureInputGenerator,
  MixtureReport,
  WeightedRecordInputGenerator,
)
from t2r_seq.data.multi_eval_input_generator import (
  MultiEvalInputGenerator,
  MultiEvalRecordInputGenerator,
)
from t2r_seq.data.presence import add_presence_specs
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator
from t2r_seq.data.rlds_input_generator import RldsInputGenerator
from t2r_seq.data.skipping import RecordInputReport
from t2r_seq.data.store_input_generator import StoreInputGenerator
from t2r_seq.data.streams import StreamReport, streamed_windows

__all__ = [
  "AbstractInputGenerator",
  "DataService",
  "DefaultConstantInputGenerator",
  "DefaultRandomInputGenerator",
  "DefaultRecordInputGenerator",
  "FractionalRecordInputGenerator",
  "GeneratorInputGenerator",
  "IndexedRecordLoader",
  "LeRobotInputGenerator",
  "MixtureInputGenerator",
  "MixtureReport",
  "MultiEvalInputGenerator",
  "MultiEvalRecordInputGenerator",
  "NumpyBatches",
  "RecordInputReport",
  "RldsInputGenerator",
  "StoreInputGenerator",
  "StoreWindowLoader",
  "StreamReport",
  "WeightedRecordInputGenerator",
  "WindowOrder",
  "add_presence_specs",
  "batches_in_order",
  "distribute_by_service",
  "indexed_records",
  "numpy_batches_in_order",
  "store_windows",
  "streamed_windows",
]
