"""Exports for robots without TensorFlow: the stateless step as a LiteRT model."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.framework import convert_to_constants

from t2r_seq import errors, files, lite, specs
from t2r_seq.policies.loaded_export import (
  LoadedExport,
  assets_path,
  scan_exports,
)
from t2r_seq.policies.policy_module import state_key
from t2r_seq.policies.policy_record import operative_config_path
from t2r_seq.policies.tolerance import TOLERANCE, describe_tolerance, relative_errors
from t2r_seq.windows.cut import mask_paths

WEIGHTS = ("float32", "float16", "int8")
_NUM_STEPS = 8
# Ops that say of which shape the elements of a list are, and their input that does.
_LISTS = {
  "TensorListConcatV2": 1,
  "TensorListFromTensor": 1,
  "TensorListGetItem": 2,
  "TensorListReserve": 0,
  "TensorListStack": 1,
}
_UNKNOWN_OPS = (
  re.compile(r"(?:TF Select|Custom) ops: ([\w, ]+)"),
  re.compile(r"failed to legalize operation 'tf\.(\w+)'"),
)


@dataclasses.dataclass(frozen=True)
class LiteReport:
  """What `export_lite` found when it compared both forms.

  Attributes:
    folder: that was written.
    num_steps: that both forms took, on random observations.
    max_difference: the largest between outputs, in units of the range of each element;
      see `relative_errors`.
  """

  folder: str
  num_steps: int
  max_difference: float


def export_lite(
  export_dir: str, folder: str, weights: str = "float32", tolerance: float = TOLERANCE
) -> LiteReport:
  """Writes an export as a folder that `t2r_seq.lite` runs: for one environment.

  Both forms then take some steps with random observations. What the network sees has to
  be the same to the last bit, and with float32 weights so have its outputs, to a
  tolerance: else nothing is written.

  Args:
    export_dir: holds exports, of which the newest is taken; or is itself one.
    folder: to write; there is nothing yet.
    weights: 'float32'; 'float16' halves the file; 'int8' quarters it, and rounds what
      large layers are given as well.
    tolerance: of float32 outputs, in units of the range of each element; that of
      `verify`.
  Returns:
    What was compared.
  Raises:
    SpecError: there is no export, or it has no stateless step; LiteRT lacks an op that
      the model uses, which is named; or the two forms differ.
    ImportError: the interpreter is missing; names the extra.
    OSError: the folder could not be written.
  """
  if weights not in WEIGHTS:
    raise errors.SpecError(
      f"export lite: weights: expected one of {errors.listing(WEIGHTS)}, got "
      f"'{weights}'."
    )
  if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
    raise errors.SpecError(
      f"export lite: {folder}: expected a folder that is not there yet, got one that "
      "is. Name another one."
    )
  # What is missing is said before the work is done.
  errors.load_extra("ai_edge_litert.interpreter", "lite")
  found = scan_exports(export_dir)[0]
  if not found:
    raise errors.SpecError(
      f"export lite: {export_dir}: expected a finished export, or a folder of them, "
      "got none. Exports are below a run's export/latest."
    )
  loaded = LoadedExport(found[-1])
  if not loaded.state_spec:
    raise errors.SpecError(
      f"export lite: {loaded.path}: expected an export with a stateless_step, got one "
      "without. Models that take sequences have none; export older ones again."
    )
  content = _convert(loaded, weights)
  layout = _layout(loaded, content, weights)
  initial = {path: each[0] for path, each in loaded.initial_state(1).items()}
  with files.new_folder(folder) as partial:
    with open(os.path.join(partial, lite.STEP_FILE), "wb") as f:
      f.write(content)
    with open(os.path.join(partial, lite.LAYOUT_FILE), "w", encoding="utf-8") as f:
      f.write(layout.to_json())
    np.savez_compressed(os.path.join(partial, lite.STATE_FILE), **initial)
    shutil.copy(assets_path(loaded.path), os.path.join(partial, lite.SPECS_FILE))
    config = operative_config_path(loaded.path)
    if os.path.exists(config):
      shutil.copy(config, partial)
    lite.write_checksums(partial)
    most = tolerance if weights == "float32" else float("inf")
    difference = _compare(loaded, partial, most)
  logging.info("Exported %s for LiteRT to %s", loaded.path, folder)
  return LiteReport(str(folder), _NUM_STEPS, difference)


def _convert(loaded: LoadedExport, weights: str) -> bytes:
  """Returns the step for one environment as a `.tflite` file."""
  step = _for_one(loaded.signature("stateless_step"))
  with tempfile.TemporaryDirectory() as saved:
    # Names for arguments and outputs come from the signature of a SavedModel alone.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    signatures = {lite.SIGNATURE: step}
    tf.saved_model.save(tf.Module(), saved, signatures, options)
    converter = tf.lite.TFLiteConverter.from_saved_model(saved, [lite.SIGNATURE])
    return _converted(converter, loaded.path, weights)


def _converted(converter: Any, path: str, weights: str) -> bytes:
  if weights != "float32":
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  if weights == "float16":
    converter.target_spec.supported_types = [tf.float16]
  try:
    return converter.convert()
  except Exception as error:  # It raises nearly anything.
    text = str(error)
    ops = {
      name.strip()
      for pattern in _UNKNOWN_OPS
      for names in pattern.findall(text)
      for name in names.split(",")
    }
    got = f"the op {errors.listing(ops)}" if ops else f"an error: {text[-300:]}"
    raise errors.SpecError(
      f"export lite: {path}: expected ops that LiteRT has, got {got}. Use "
      "others in the model or its preprocessor, or run the SavedModel."
    ) from error


def _for_one(signature: Any) -> Any:
  """Makes a signature of any number of environments into a function of one.

  Variables become constants, and all shapes known.
  """
  taken = {
    name: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype, name)
    for name, spec in sorted(signature.structured_input_signature[1].items())
  }

  @tf.function(input_signature=list(taken.values()), autograph=False)
  def of_one(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    return signature(**dict(zip(taken, tensors, strict=True)))

  traced = of_one.get_concrete_function()
  frozen = convert_to_constants.convert_variables_to_constants_v2(
    traced, lower_control_flow=False
  )
  graph_def = frozen.graph.as_graph_def()
  _fix_list_shapes(graph_def)
  _rename_functions(graph_def, "_of_one")
  inputs = [tensor.name for tensor in frozen.inputs]
  names = sorted(traced.structured_outputs)
  outputs = [tensor.name for tensor in frozen.outputs]

  @tf.function(input_signature=list(taken.values()), autograph=False)
  def step(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    given = dict(zip(inputs, tensors, strict=True))
    said = tf.graph_util.import_graph_def(graph_def, given, outputs, name="")
    return dict(zip(names, said, strict=True))

  return step


def _fix_list_shapes(graph_def: Any) -> None:
  """Says that the lists in loops hold tensors of one environment.

  Keras's recurrent layers collect their steps in lists of elements [batch, ...], whose
  batch was open when they were traced; the converter must know it.
  """
  for nodes in (
    graph_def.node,
    *(each.node_def for each in graph_def.library.function),
  ):
    by_name = {node.name: node for node in nodes}
    for node in nodes:
      if node.op not in _LISTS:
        continue
      shape = by_name.get(node.input[_LISTS[node.op]].split(":")[0].lstrip("^"))
      if shape is None or shape.op != "Const":
        continue
      value = tf.make_ndarray(shape.attr["value"].tensor)
      if value.ndim == 1 and value.size and value[0] == -1:
        value = np.array([1, *value[1:]], value.dtype)
        shape.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _rename_functions(graph_def: Any, suffix: str) -> None:
  """Gives the functions other names than those that TensorFlow knows them by."""
  known = {each.signature.name for each in graph_def.library.function}
  for each in graph_def.library.function:
    each.signature.name += suffix
  for nodes in (
    graph_def.node,
    *(each.node_def for each in graph_def.library.function),
  ):
    for node in nodes:
      for value in node.attr.values():
        for named in (value.func, *value.list.func):
          if named.name in known:
            named.name += suffix


def _layout(loaded: LoadedExport, content: bytes, weights: str) -> lite.Layout:
  """Returns what the folder says of the policy."""
  signature = loaded.signature("stateless_step")
  state = {path: state_key(path) for path in loaded.state_spec}
  masks = {path: mask for mask, path in mask_paths(loaded.feature_spec).items()}
  seen = {}
  for path, spec in loaded.feature_spec.items():
    kept = f"history_{specs.signature_key(path)}"
    if spec.time_offsets is not None and kept in state:
      offsets = np.asarray(spec.time_offsets).tolist()
      seen[path] = lite.Window(kept, offsets, masks.get(path, ""))
  outputs = set(signature.structured_outputs) - set(state.values())
  return lite.Layout(
    hashlib.sha256(content).hexdigest()[:16],
    loaded.global_step,
    weights,
    len(content),
    _leaves(
      loaded.step_spec, {path: specs.signature_key(path) for path in loaded.step_spec}
    ),
    _leaves(loaded.state_spec, state),
    sorted(outputs),
    seen,
    None if loaded.record is None else dataclasses.asdict(loaded.record),
    loaded.path if "://" in loaded.path else os.path.abspath(loaded.path),
  )


def _leaves(
  spec: Mapping[str, specs.ExtendedTensorSpec], arguments: Mapping[str, str]
) -> dict[str, lite.Leaf]:
  return {
    path: lite.Leaf(
      arguments[path],
      tuple(leaf.shape.as_list()),
      np.dtype(leaf.dtype.as_numpy_dtype),
    )
    for path, leaf in spec.items()
  }


def _compare(loaded: LoadedExport, folder: str, tolerance: float) -> float:
  """Has both forms take steps of two episodes; returns by how much outputs differ.

  Raises:
    SpecError: the frames that the network sees differ, or outputs do by more.
  """
  policy = lite.LitePolicy(folder, action_key=lite.Layout.read(folder).outputs[0])
  states, state = loaded.initial_state(1), policy.initial_state()
  expected: dict[str, list[np.ndarray]] = {}
  given: dict[str, list[np.ndarray]] = {}
  for number in range(_NUM_STEPS):
    observation = specs.make_random_numpy(loaded.step_spec, 1, seed=number)
    is_first = number == 3 * _NUM_STEPS // 4
    want, states = loaded.stateless_step(observation, np.array([is_first]), states)
    alone = {path: observation[path][0] for path in loaded.step_spec}
    got, state = policy.stateless_step(alone, state, is_first)
    for name, value in {**states, **want}.items():
      expected.setdefault(name, []).append(value[0])
      given.setdefault(name, []).append({**state, **got}[name])
  most, found = 0.0, []
  for name, values in expected.items():
    right, mine = np.stack(values), np.stack(given[name])
    if name.startswith("history_") or right.dtype.kind not in "fc":
      pairs = zip(right, mine, strict=True)
      same = np.array([np.array_equal(*pair, equal_nan=True) for pair in pairs])
      allowed = ""
    else:
      error = relative_errors(right, mine).reshape([len(right), -1])
      most = max(most, float(error.max(initial=0.0)))
      same = np.all(error <= tolerance, axis=1)
      allowed = f", to {describe_tolerance(tolerance)}"
    if not same.all():
      number = int(np.argmin(same))
      at = f"what the SavedModel gives at step {number}, {_shown(right[number])}"
      found.append(errors.Mismatch(name, f"{at}{allowed}", _shown(mine[number])))
  if found:
    raise errors.mismatch_error(f"export lite: {loaded.path}", found)
  return most


def _shown(value: np.ndarray) -> str:
  return np.array2string(value.ravel()[:4], precision=6)
