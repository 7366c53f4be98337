"""What is exported: a model's functions as signatures, and the history they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.models import T2RModel
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.training.history import FrameHistory

_Outputs = dict[str, tf.Tensor]
_IS_FIRST = "is_first"


def exported_feature_specs(model: T2RModel) -> TensorSpecStruct:
  """Returns the raw features that a policy of this model is given.

  Args:
    model: the model.
  Returns:
    The required in specs of its preprocessor in mode 'infer', by path.
  Raises:
    SpecError: a feature looks into the future, or two paths would be one argument of
      a signature.
  """
  in_spec = model.preprocessor.get_in_feature_specification(ModeKeys.INFER)
  given = specs.flatten_spec_structure(in_spec)
  flat = specs.filter_required_flat_tensor_spec(given)
  flat = specs.map_leaves(ExtendedTensorSpec.to_spec, flat)
  found = []
  by_key: dict[str, str] = {}
  for path, spec in flat.items():
    if windows.time_span({path: spec})[1] > 0:
      expected, got = "time offsets of at most 0 to export", str(spec.time_offsets)
      hint = "A policy cannot see the future: make it a label."
      found.append(errors.Mismatch(path, expected, got, hint))
    key = specs.signature_key(path)
    if key == _IS_FIRST:
      expected = f"another path: '{_IS_FIRST}' is an argument of the policy's step"
      found.append(errors.Mismatch(path, expected, f"'{path}'", "Rename it."))
    other = by_key.setdefault(key, path)
    if other != path:
      expected = "an argument name of its own in the export"
      found.append(errors.Mismatch(path, expected, f"'{key}', that of {other}"))
  if found:
    raise errors.mismatch_error("export", found)
  return flat


class PolicyFunctions:
  """The signatures of an exported policy, and the module that owns their variables.

  Attributes:
    module: holds variables only, so that the export loads without the model's code.
  """

  def __init__(self, model: T2RModel) -> None:
    """Creates the functions of a built model."""
    self._model = model
    self._specs = exported_feature_specs(model)
    self._keys = {path: specs.signature_key(path) for path in self._specs}
    self._windowed = TensorSpecStruct(
      (path, spec)
      for path, spec in self._specs.items()
      if spec.time_offsets is not None
    )
    # Masks are derived from the history, never asked for.
    self._masks = windows.mask_paths(self._specs)
    self._has_sequences = any(spec.is_sequence for spec in self._specs.values())
    # It acts at the first step, too, whatever it was trained on.
    front = windows.Cut(padding=model.padding).front
    self._cut = windows.Cut(padding="zero" if front == "zero" else "repeat")
    self._history = FrameHistory(self._windowed, self._cut, self._masks)
    self.module = tf.Module()
    self.module.model_variables = list(model.variables)
    self.module.history = self._history

  def signatures(self) -> dict[str, Any]:
    """Returns the signatures, to be traced when they are saved.

    Returns:
      Functions by name. 'serving_default' takes batches of whole windows and
      'parse_tf_example' serialized records; 'step', 'reset' and 'last_window' act on
      the history. Models that take sequences have no 'step', and 'parse_tf_example'
      needs named specs of one dataset.
    """
    signatures = {"serving_default": self._serving()}
    if self._is_parseable():
      signatures["parse_tf_example"] = self._parse()
    if self._has_sequences:
      logging.info("The export has no 'step': the model takes sequences.")
    else:
      signatures |= {"step": self._step(), "reset": self._reset()}
    if len(self._windowed) and not self._has_sequences:
      signatures["last_window"] = self._last_window()
    return signatures

  def _is_parseable(self) -> bool:
    datasets = {spec.dataset_key for spec in self._specs.values()}
    unnamed = [
      path for path, spec in windows.flat_specs(self._specs).items() if not spec.name
    ]
    stacked_sequences = self._has_sequences and len(self._windowed) > 0
    if len(datasets) == 1 and not unnamed and not stacked_sequences:
      return True
    logging.info(
      "The export has no 'parse_tf_example': datasets %s, paths without a name %s, "
      "sequences of stacks: %s.",
      sorted(datasets),
      unnamed,
      stacked_sequences,
    )
    return False

  def _serving(self) -> Any:
    shapes = {}
    for path, spec in self._specs.items():
      shapes[path] = [None, *([None] if spec.is_sequence else []), *spec.shape]
    return self._trace(self._model.export_outputs, shapes)

  def _step(self) -> Any:
    def step(features: TensorSpecStruct) -> _Outputs:
      seen = TensorSpecStruct((path, features[path]) for path in shapes)
      if len(self._windowed):
        seen.update(self._history.push(features, features[_IS_FIRST]))
      return self._model.export_outputs(seen)

    shapes = {
      path: [None, *spec.frame_shape]
      for path, spec in self._specs.items()
      if path not in self._masks
    }
    return self._trace(step, {**shapes, _IS_FIRST: [None]})

  def _trace(
    self, fn: Callable[[TensorSpecStruct], _Outputs], shapes: Mapping[str, Any]
  ) -> Any:
    """Makes a function of a struct into one of arguments that are named in a signature.

    It has an input signature and is not a concrete function, which could not be saved
    once it has seen distributed variables.
    """
    signature = []
    for path, shape in shapes.items():
      dtype = self._specs[path].dtype if path in self._specs else tf.bool
      signature.append(tf.TensorSpec(shape, dtype, self._keys.get(path, path)))

    @tf.function(input_signature=signature)
    def function(*tensors: tf.Tensor) -> _Outputs:
      return fn(TensorSpecStruct(zip(shapes, tensors, strict=True)))

    return function

  def _reset(self) -> Any:
    signature = [tf.TensorSpec([], tf.int32, "num_slots")]

    @tf.function(input_signature=signature, autograph=False)
    def reset(num_slots: tf.Tensor) -> _Outputs:
      self._history.reset(num_slots)
      return {"num_slots": num_slots}

    return reset

  def _last_window(self) -> Any:
    @tf.function(input_signature=[], autograph=False)
    def last_window() -> _Outputs:
      return {self._keys[path]: w for path, w in self._history.windows().items()}

    return last_window

  def _parse(self) -> Any:
    flat = specs.add_sequence_length_specs(windows.flat_specs(self._specs))
    parse = records.create_parse_tf_example_fn(flat)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def parse_tf_example(examples: tf.Tensor) -> _Outputs:
      features = parse(examples)
      if len(self._windowed):
        features = self._windows_at_last_step(features)
      return self._model.export_outputs(features)

    return parse_tf_example

  @tf.autograph.experimental.do_not_convert
  def _windows_at_last_step(self, features: TensorSpecStruct) -> TensorSpecStruct:
    """Maps [B, T, ...] to the windows [B, K, ...] whose anchors end the records."""
    length_path = f"{next(iter(self._windowed))}_length"

    def read(row: TensorSpecStruct) -> TensorSpecStruct:
      length = row[length_path]
      episode = TensorSpecStruct(
        (path, row[path][:length] if path in self._windowed else row[path])
        for path in self._specs
        if path not in self._masks
      )
      return windows.gather_windows(episode, length - 1, self._specs, self._cut)

    signature = TensorSpecStruct(
      (path, tf.TensorSpec(spec.shape, spec.dtype))
      for path, spec in self._specs.items()
    )
    return tf.map_fn(read, features, fn_output_signature=signature)
