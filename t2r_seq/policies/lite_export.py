"""Exports for robots without TensorFlow: the stateless step as a LiteRT model."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context
from tensorflow.python.framework import convert_to_constants

from t2r_seq import errors, files, imports, lite, specs
from t2r_seq.lite import lite_policy
from t2r_seq.policies.loaded_export import (
  LoadedExport,
  assets_path,
  scan_exports,
)
from t2r_seq.policies.policy_module import EMBEDDED_STEP, IS_FIRST, state_key
from t2r_seq.policies.policy_record import operative_config_path
from t2r_seq.policies.tolerance import TOLERANCE, describe_tolerance, relative_errors
from t2r_seq.windows.cut import mask_paths

WEIGHTS = ("float32", "float16", "int8")
_NUM_STEPS = 8
_TEXTS = ("Pick up the RED block!", "", "open the 2nd drawer, then close it", "Öffne")
# LiteRT has few ops for these dtypes. It computes in float32 what is computed in narrow
# floats; values of the others are only moved and cast, so that they can be cast before.
_NARROW = {tf.bfloat16: tf.float32, tf.float16: tf.float32}
_MOVED = {tf.float64: tf.float32, tf.uint16: tf.int32, tf.uint32: tf.int64}
_MOVING_OPS = frozenset(
  (
    *("BroadcastTo", "Cast", "ConcatV2", "Const", "ExpandDims", "Fill", "GatherNd"),
    *("GatherV2", "Identity", "IdentityN", "If", "Pack", "PadV2", "PartitionedCall"),
    *("Placeholder", "Rank", "Reshape", "ReverseV2", "Roll", "Select", "SelectV2"),
    *("Shape", "ShapeN", "Size", "Slice", "Split", "SplitV", "Squeeze"),
    *("StatefulPartitionedCall", "StatelessIf", "StatelessWhile", "StridedSlice"),
    *("Tile", "Transpose", "Unpack", "While", "ZerosLike"),
  )
)
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
    narrow: the dtypes of the export that became float32, such as 'bfloat16'; the
      difference is then mostly the rounding of the export.
  """

  folder: str
  num_steps: int
  max_difference: float
  narrow: tuple[str, ...] = ()


def export_lite(
  export_dir: str, folder: str, weights: str = "float32", tolerance: float = TOLERANCE
) -> LiteReport:
  """Writes an export as a folder that `t2r_seq.lite` runs: for one environment.

  What the export computes in bfloat16 or float16 becomes float32, and `t2r_seq.lite`
  embeds texts. Both forms then take some steps with random observations. What the
  network sees has to be the same to the last bit, and with float32 weights so have its
  outputs, to a tolerance: else nothing is written. An export in bfloat16 or float16 is
  compared in float32.

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
  imports.load_extra("ai_edge_litert.interpreter", "lite")
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
  step = _Step(loaded)
  content = _convert(step, loaded.path, weights)
  layout = _layout(loaded, step, content, weights)
  initial: dict[str, Any] = dict(step.initial_state())
  with files.new_folder(folder) as partial:
    with open(os.path.join(partial, lite_policy.STEP_FILE), "wb") as f:
      f.write(content)
    with open(
      os.path.join(partial, lite_policy.LAYOUT_FILE), "w", encoding="utf-8"
    ) as f:
      f.write(layout.to_json())
    np.savez_compressed(os.path.join(partial, lite_policy.STATE_FILE), **initial)
    shutil.copy(assets_path(loaded.path), os.path.join(partial, lite_policy.SPECS_FILE))
    config = operative_config_path(loaded.path)
    if os.path.exists(config):
      shutil.copy(config, partial)
    lite_policy.write_checksums(partial)
    most = tolerance if weights == "float32" else float("inf")
    if step.narrow:
      # The rounding of a narrow dtype says nothing about the conversion.
      _compare(loaded, partial, most, step)
      most = float("inf")
    difference = _compare(loaded, partial, most)
  logging.info("Exported %s for LiteRT to %s", loaded.path, folder)
  return LiteReport(str(folder), _NUM_STEPS, difference, step.narrow)


class _Step:
  """An export's stateless step for one environment, in dtypes that LiteRT has.

  Attributes:
    function: with an `input_signature`.
    narrow: names of the narrow floats that became float32.
    texts: how texts are embedded, by path.
    outputs: the names of what the policy gives.
    observation: what it takes, by path.
    state: what it remembers, by path.
  """

  def __init__(self, loaded: LoadedExport) -> None:
    """Reads the export; SpecError if it takes strings."""
    record = loaded.record
    self.texts = dict(record.texts or {}) if record is not None else {}
    signature = loaded.signature(EMBEDDED_STEP if self.texts else "stateless_step")
    self.function, changed = _for_one(signature)
    self.narrow = tuple(dtype.name for dtype in changed if dtype in _NARROW)
    self._loaded = loaded
    taken = {spec.name: spec for spec in self.function.input_signature}
    arguments = {path: specs.signature_key(path) for path in loaded.step_spec}
    self._state = {path: state_key(path) for path in loaded.state_spec}
    self.outputs = set(signature.structured_outputs) - set(self._state.values())
    self.observation = _leaves(taken, arguments)
    self.state = _leaves(taken, self._state)
    strings = [
      errors.Mismatch(
        path,
        "numbers, or texts of a HashedTextPreprocessor",
        "a string",
        "LiteRT has no strings: embed them there and export again, or run the "
        "SavedModel.",
      )
      for path, leaf in {**self.observation, **self.state}.items()
      if leaf.dtype == object
    ]
    if strings:
      raise errors.mismatch_error(f"export lite: {loaded.path}", strings)

  def initial_state(self) -> dict[str, np.ndarray]:
    """Returns the state before a first step, by path."""
    initial = self._loaded.initial_state(1)
    return {
      path: np.zeros(leaf.shape, leaf.dtype)  # The vector of an empty text.
      if initial[path].dtype == object
      else initial[path][0].astype(leaf.dtype)
      for path, leaf in self.state.items()
    }

  def stateless_step(
    self, observation: Mapping[str, Any], is_first: np.ndarray, state: Mapping[str, Any]
  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Takes a step in TensorFlow, as `LoadedExport.stateless_step` does."""
    given = {
      **observation,
      **{p: w.embed(observation[p]) for p, w in self.texts.items()},
    }
    values = {IS_FIRST: is_first}
    for leaves, source in ((self.observation, given), (self.state, state)):
      for path, leaf in leaves.items():
        values[leaf.argument] = source[path].astype(leaf.dtype)
    names = [spec.name for spec in self.function.input_signature]
    outputs = {k: v.numpy() for k, v in self.function(*map(values.get, names)).items()}
    state = {path: outputs.pop(key) for path, key in self._state.items()}
    return outputs, state


def _convert(step: _Step, path: str, weights: str) -> bytes:
  """Returns the step for one environment as a `.tflite` file."""
  with tempfile.TemporaryDirectory() as saved:
    # Names for arguments and outputs come from the signature of a SavedModel alone.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    signatures = {lite_policy.SIGNATURE: step.function}
    tf.saved_model.save(tf.Module(), saved, signatures, options)
    converter = tf.lite.TFLiteConverter.from_saved_model(saved, [lite_policy.SIGNATURE])
    return _converted(converter, path, weights, step.function)


def _converted(converter: Any, path: str, weights: str, function: Any) -> bytes:
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
    operations = function.get_concrete_function().graph.get_operations()
    hint = ""
    if any(tensor.dtype == tf.float64 for op in operations for tensor in op.outputs):
      hint = " It computes in float32: cast float64 before any arithmetic."
    raise errors.SpecError(
      f"export lite: {path}: expected ops that LiteRT has, got {got}. Use "
      f"others in the model or its preprocessor, or run the SavedModel.{hint}"
    ) from error


def _for_one(signature: Any) -> tuple[Any, dict[tf.DType, tf.DType]]:
  """Makes a signature of any number of environments into a function of one.

  Variables become constants, all shapes known, and dtypes those that LiteRT has.

  Returns:
    The function, and the new dtype of each that was changed.
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
  changed = _change_dtypes(graph_def)
  for function in graph_def.library.function:
    context.context().add_function_def(function)  # To call it without a graph.
  inputs = [tensor.name for tensor in frozen.inputs]
  names = sorted(traced.structured_outputs)
  outputs = [tensor.name for tensor in frozen.outputs]

  given_specs = [
    tf.TensorSpec(spec.shape, changed.get(spec.dtype, spec.dtype), name)
    for name, spec in taken.items()
  ]

  @tf.function(input_signature=given_specs, autograph=False)
  def step(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    given = dict(zip(inputs, tensors, strict=True))
    said = tf.graph_util.import_graph_def(graph_def, given, outputs, name="")
    return dict(zip(names, said, strict=True))

  return step, changed


def _change_dtypes(graph_def: Any) -> dict[tf.DType, tf.DType]:
  """Has a graph compute in dtypes for which LiteRT has ops.

  Without variables, dtypes are attributes of nodes, constants, and the arguments of
  functions. A cast from one float to another then does nothing. float64 stays if there
  is arithmetic with it: time stamps, for example, need its precision.

  Returns:
    The new dtype of each that was changed.
  """
  nodes = list(_nodes(graph_def))
  moved = {
    old: new
    for old, new in _MOVED.items()
    if all(_only_moves(node, old) for node in nodes)
  }
  dtypes = {
    old.as_datatype_enum: (old, new) for old, new in {**_NARROW, **moved}.items()
  }
  changed = {}

  def change(dtype: int) -> int:
    if dtype not in dtypes:
      return dtype
    old, new = dtypes[dtype]
    changed[old] = new
    return new.as_datatype_enum

  for function in graph_def.library.function:
    for argument in (*function.signature.input_arg, *function.signature.output_arg):
      argument.type = change(argument.type)
  for node in nodes:
    for attribute in node.attr.values():
      kind = attribute.WhichOneof("value")
      if kind == "type":
        attribute.type = change(attribute.type)
      elif kind == "list":
        attribute.list.type[:] = map(change, attribute.list.type)
      elif kind == "tensor" and attribute.tensor.dtype in dtypes:
        new = dtypes[attribute.tensor.dtype][1].as_numpy_dtype
        value = tf.make_ndarray(attribute.tensor).astype(new)
        attribute.tensor.CopyFrom(tf.make_tensor_proto(value))
  return changed


def _only_moves(node: Any, dtype: tf.DType) -> bool:
  """Whether an op does nothing with a dtype, or nothing but move its values."""
  number = dtype.as_datatype_enum
  if number not in _dtypes(node):
    return True
  if node.op == "Cast":
    if dtype.is_integer:
      return node.attr["DstT"].type != number
    return all(tf.as_dtype(node.attr[key].type).is_floating for key in ("SrcT", "DstT"))
  return node.op in _MOVING_OPS


def _dtypes(node: Any) -> set[int]:
  """Returns the dtypes that an op takes and gives."""
  attributes = node.attr.values()
  return {each.type for each in attributes}.union(*(a.list.type for a in attributes))


def _nodes(graph_def: Any) -> Iterator[Any]:
  """Yields the nodes of a graph, and of its functions."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


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
  for node in _nodes(graph_def):
    for value in node.attr.values():
      for named in (value.func, *value.list.func):
        if named.name in known:
          named.name += suffix


def _layout(
  loaded: LoadedExport, step: _Step, content: bytes, weights: str
) -> lite_policy.Layout:
  """Returns what the folder says of the policy."""
  masks = {path: mask for mask, path in mask_paths(loaded.feature_spec).items()}
  seen = {}
  for path, spec in loaded.feature_spec.items():
    kept = f"history_{specs.signature_key(path)}"
    if spec.time_offsets is not None and kept in step.state:
      offsets = np.asarray(spec.time_offsets).tolist()
      seen[path] = lite_policy.Window(kept, offsets, masks.get(path, ""))
  return lite_policy.Layout(
    hashlib.sha256(content).hexdigest()[:16],
    loaded.global_step,
    weights,
    len(content),
    step.observation,
    step.state,
    sorted(step.outputs),
    seen,
    None if loaded.record is None else dataclasses.asdict(loaded.record),
    loaded.path if "://" in loaded.path else os.path.abspath(loaded.path),
  )


def _leaves(
  taken: Mapping[str, tf.TensorSpec], arguments: Mapping[str, str]
) -> dict[str, lite_policy.Leaf]:
  """Returns what a step takes of one environment, by path."""
  return {
    path: lite_policy.Leaf(
      name,
      tuple(taken[name].shape.as_list()[1:]),
      np.dtype(taken[name].dtype.as_numpy_dtype),
    )
    for path, name in arguments.items()
  }


def _compare(
  loaded: LoadedExport, folder: str, tolerance: float, reference: _Step | None = None
) -> float:
  """Has both forms take steps of two episodes; returns by how much outputs differ.

  Args:
    loaded: the export.
    folder: the lite form.
    tolerance: of outputs.
    reference: takes the steps that are compared; None: the export.
  Raises:
    SpecError: the frames that the network sees differ, or outputs do by more.
  """
  policy = lite.LitePolicy(
    folder, action_key=lite_policy.Layout.read(folder).outputs[0]
  )
  states: Mapping[str, Any] = loaded.initial_state(1)
  state = policy.initial_state()
  if reference is not None:
    states = {path: value[np.newaxis] for path, value in state.items()}
  step: Any = loaded if reference is None else reference
  expected: dict[str, list[np.ndarray]] = {}
  given: dict[str, list[np.ndarray]] = {}
  for number in range(_NUM_STEPS):
    observation = specs.make_random_numpy(loaded.step_spec, 1, seed=number)
    for path in policy.layout.texts:
      shape = observation[path].shape
      observation[path] = np.full(shape, _TEXTS[number % len(_TEXTS)].encode(), object)
    is_first = number == 3 * _NUM_STEPS // 4
    want, states = step.stateless_step(observation, np.array([is_first]), states)
    alone = {path: observation[path][0] for path in loaded.step_spec}
    got, state = policy.stateless_step(alone, state, is_first)
    for name, value in {**states, **want}.items():
      if value.dtype == object:
        continue  # Texts, of which the lite form keeps vectors.
      mine = {**state, **got}[name]
      # LiteRT has no ops for some dtypes.
      expected.setdefault(name, []).append(value[0].astype(mine.dtype, copy=False))
      given.setdefault(name, []).append(mine)
  most, found = 0.0, []
  for name, values in expected.items():
    right, mine = np.stack(values), np.stack(given[name])
    is_seen = name.startswith("history_")
    if is_seen or right.dtype.kind not in "fc":
      pairs = zip(right, mine, strict=True)
      same = np.array([np.array_equal(*pair, equal_nan=True) for pair in pairs])
      # Where weights are rounded, another element may be the largest.
      same |= not is_seen and tolerance == float("inf")
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
