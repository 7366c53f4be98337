"""Input generators: tf.data pipelines that feed a model what its specs ask for."""

from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.generator_input_generator import GeneratorInputGenerator
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator
from t2r_seq.data.store_loader import StoreWindows, store_windows
from t2r_seq.data.synthetic_input_generators import (
  DefaultConstantInputGenerator,
  DefaultRandomInputGenerator,
)
from t2r_seq.data.window_order import WindowOrder

__all__ = [
  "AbstractInputGenerator",
  "DefaultConstantInputGenerator",
  "DefaultRandomInputGenerator",
  "DefaultRecordInputGenerator",
  "GeneratorInputGenerator",
  "StoreWindows",
  "WindowOrder",
  "store_windows",
]
