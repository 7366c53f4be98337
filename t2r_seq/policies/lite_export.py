"""Exports for robots without TensorFlow: the step as a LiteRT model.

>>> import numpy as np
>>> from t2r_seq import lite, policies, testing, training
>>> model = testing.MockT2RModel()
>>> model.build()
>>> _ = training.export_saved_model(model, "exports", global_step=0)
>>> policies.export_lite("exports", "robot").max_difference < 1e-5
True
>>> robot = lite.LitePolicy("robot", action_key="a_predicted")
>>> action, outputs = robot.sample_action({"x": np.zeros(3)})
>>> action.shape
(1,)
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context
from tensorflow.python.framework import convert_to_constants

from t2r_seq import errors, files, imports, specs
from t2r_seq.lite import lite_policy, policy_io
from t2r_seq.lite.overlap import SYNCHRONOUS
from t2r_seq.lite.policy_io import Leaf, PolicyState
from t2r_seq.policies.loaded_export import LoadedExport
from t2r_seq.policies.policy_model import operative_config_path
from t2r_seq.policies.policy_module import EMBEDDED_STEP, IS_FIRST
from t2r_seq.specs.assets import assets_path, scan_exports
from t2r_seq.specs.structures import signature_key
from t2r_seq.windows.cut import mask_paths

# A share of each element's range: rounding errors follow the scale of an output.
TOLERANCE = 5e-3
# With fewer steps, the range of an element is unknown.
_FEWEST_STEPS = 4
# The least range, as a share of `1 + |value|`, for elements that hardly change.
_LEAST_RANGE = 0.02
WEIGHTS = ("float32", "float16", "int8")
_NUM_STEPS = 8
_TEXTS = ("Pick up the RED block!", "", "open the 2nd drawer, then close it", "Öffne")
# LiteRT has few ops for these dtypes. Narrow floats become float32; the others are
# replaced if the graph only copies and casts their values.
_NARROW = {tf.bfloat16: tf.float32, tf.float16: tf.float32}
_REPLACED = {tf.float64: tf.float32, tf.uint16: tf.int32, tf.uint32: tf.int64}
_COPYING_OPS = frozenset(
  (
    *("BroadcastTo", "Cast", "ConcatV2", "Const", "ExpandDims", "Fill", "GatherNd"),
    *("GatherV2", "Identity", "IdentityN", "If", "Pack", "PadV2", "PartitionedCall"),
    *("Placeholder", "Rank", "Reshape", "ReverseV2", "Roll", "Select", "SelectV2"),
    *("Shape", "ShapeN", "Size", "Slice", "Split", "SplitV", "Squeeze"),
    *("StatefulPartitionedCall", "StatelessIf", "StatelessWhile", "StridedSlice"),
    *("Tile", "Transpose", "Unpack", "While", "ZerosLike"),
  )
)
# Ops of lists: which of the inputs is the shape of the elements.
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
  """Result of the comparison by `export_lite`.

  Attributes:
    folder: folder of the new export.
    num_steps: steps that were compared, on random observations.
    max_difference: largest difference of float outputs and states, as a share of each
      element's range.
    narrow: dtypes that became float32, such as 'bfloat16'; the difference is then
      mostly the rounding of the export.
    drawn: outputs that differ between calls with the same inputs, such as those of a
      diffusion without a seed; they are not compared.
  """

  folder: str
  num_steps: int
  max_difference: float
  narrow: tuple[str, ...] = ()
  drawn: tuple[str, ...] = ()


def export_lite(
  export_dir: str,
  folder: str,
  weights: str = "float32",
  tolerance: float = TOLERANCE,
  overlap: bool | None = None,
  robot: str | None = None,
) -> LiteReport:
  """Writes an export as a folder that `t2r_seq.lite` runs, for one environment.

  Narrow floats become float32. The export and the folder then take steps with the same
  random observations. If their windows differ in a bit, or, with float32 weights, their
  outputs by more than the tolerance, nothing is written.

  Args:
    export_dir: holds exports, of which the newest is taken; or is itself one.
    folder: folder to write; new, or empty.
    weights: 'float32'; 'float16' halves the file; 'int8' quarters it, and also rounds
      the inputs of large layers.
    tolerance: largest difference of float outputs, as a share of each element's range;
      for `weights='float32'` only.
    overlap: also writes the halves of a step, for an `OverlappedPolicy`, with further
      copies of the weights; None: if the export's execution overlaps.
    robot: name of the robot, for an export of several robots.
  Returns:
    Differences between the two.
  Raises:
    SpecError: an argument is invalid; there is no export; it is damaged, or has no step
      or robot of that name; the step takes strings; LiteRT lacks an op of the model; or
      the two differ.
    ImportError: the interpreter is missing; names the extra.
    OSError: the folder cannot be written.
  """
  if weights not in WEIGHTS:
    raise errors.SpecError(
      f"export lite: weights: expected one of {errors.listing(WEIGHTS)}, got "
      f"'{weights}'."
    )
  if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
    raise errors.SpecError(
      f"export lite: {folder}: expected a new or empty folder, got files there. Name "
      "another one."
    )
  imports.load_extra("ai_edge_litert.interpreter", "lite")
  newest = scan_exports(export_dir)[0]
  if not newest:
    raise errors.SpecError(
      f"export lite: {export_dir}: expected a finished export, or a folder of them, "
      "got none. Exports are below a run's export/latest."
    )
  loaded = LoadedExport(newest[-1], robot=robot)
  if loaded.record.state is None:
    raise errors.SpecError(
      f"export lite: {loaded.path}: expected an export with a step, got one without. "
      "Models that take sequences have none."
    )
  step = _Step(loaded)
  content = _convert(step.function, loaded.path, weights)
  execution = loaded.record.execution
  if overlap is None:
    overlap = execution is not None and execution.overlap != SYNCHRONOUS
  halves = {
    name: _convert(function, loaded.path, weights)
    for name, function in (step.halves() if overlap else {}).items()
  }
  layout = _layout(loaded, step, content, weights)
  initial: dict[str, Any] = dict(step.initial_state())
  with files.new_folder(folder) as partial:
    with open(os.path.join(partial, lite_policy.STEP_FILE), "wb") as f:
      f.write(content)
    for name, half in halves.items():
      with open(os.path.join(partial, f"{name}.tflite"), "wb") as f:
        f.write(half)
    with open(
      os.path.join(partial, lite_policy.LAYOUT_FILE), "w", encoding="utf-8"
    ) as f:
      f.write(layout.to_json())
    np.savez_compressed(os.path.join(partial, lite_policy.STATE_FILE), **initial)
    assets = assets_path(loaded.path, loaded.robot)
    shutil.copy(assets, os.path.join(partial, lite_policy.SPECS_FILE))
    config = operative_config_path(loaded.path)
    if os.path.exists(config):
      shutil.copy(config, partial)
    lite_policy.write_checksums(partial)
    most = tolerance if weights == "float32" else float("inf")
    if step.narrow:
      # The rounding of a narrow dtype hides errors of the conversion.
      _compare(loaded, partial, most, step)
      most = float("inf")
    difference, drawn = _compare(loaded, partial, most)
  logging.info("Exported %s for LiteRT to %s", loaded.path, folder)
  return LiteReport(str(folder), _NUM_STEPS, difference, step.narrow, drawn)


class _Step:
  """The step of an export for one environment, in dtypes that LiteRT has.

  Attributes:
    function: function with an `input_signature`.
    narrow: names of the narrow floats that became float32.
    texts: how texts are embedded, by path.
    outputs: names of the outputs.
    observation: arguments of the observation, by path.
    state: places of the parts of the state, by path.
  """

  def __init__(self, loaded: LoadedExport) -> None:
    """Reads the export; raises a SpecError if its step takes strings."""
    self.texts = dict(loaded.record.texts or {})
    signature = loaded.signature(EMBEDDED_STEP if self.texts else "step")
    self.function, changed = _for_one(signature)
    self.narrow = tuple(dtype.name for dtype in changed if dtype in _NARROW)
    self._loaded = loaded
    arguments = {spec.name: spec for spec in self.function.input_signature}
    self.observation = {
      path: Leaf(key, tuple(arguments[key].shape.as_list()[1:]), _numpy(arguments[key]))
      for path in loaded.step_specification()
      for key in [signature_key(path)]
    }
    stored = loaded.record.embedded_state if self.texts else loaded.record.state
    self.state = {
      path: dataclasses.replace(leaf, dtype=_numpy(arguments[leaf.argument]))
      for path, leaf in (stored or {}).items()
    }
    self._packed = {leaf.argument: leaf.dtype for leaf in self.state.values()}
    self.outputs = set(signature.structured_outputs) - set(self._packed)
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

  def halves(self) -> dict[str, Any]:
    """Returns the functions of `observe`, `plan` and `replan`, by name.

    Raises:
      SpecError: the export lacks them, or takes texts.
    """
    if self.texts:
      raise errors.SpecError(
        f"export lite: {self._loaded.path}: overlap: expected a policy without texts, "
        f"got {errors.listing(self.texts)}. Overlap the SavedModel, or a server of it."
      )
    _ = self._loaded.signature(lite_policy.OBSERVE)
    dtypes = {spec.name: spec.dtype for spec in self.function.input_signature}
    halves = {}
    for name in lite_policy.HALVES:
      if name not in self._loaded.signatures:
        continue
      halves[name], _ = _for_one(self._loaded.signature(name))
      # A half may only copy values of a dtype that another part of the step computes
      # with: then the dtype is replaced in the half alone.
      for spec in halves[name].input_signature:
        if dtypes.get(spec.name, spec.dtype) != spec.dtype:
          raise errors.SpecError(
            f"export lite: {self._loaded.path}: {spec.name}: expected "
            f"{dtypes[spec.name].name} as in the step, got {spec.dtype.name} in "
            f"'{name}'. Cast it to float32 in the preprocessor, or overlap the "
            "SavedModel."
          )
    return halves

  def initial_state(self) -> dict[str, np.ndarray]:
    """Returns the state before a first step, by path, of one environment."""
    initial = self._loaded.initial_state()
    return {
      path: np.zeros(leaf.shape, leaf.dtype)  # The vector of an empty text.
      if initial[path].dtype == object
      else initial[path][0].astype(leaf.dtype)
      for path, leaf in self.state.items()
    }

  def step(
    self, observation: Mapping[str, Any], state: PolicyState, is_first: bool
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """Takes a step in TensorFlow, as `LoadedExport.step` does."""
    values: dict[str, Any] = {IS_FIRST: np.array([is_first])}
    if time_paths := self._loaded.time_paths:
      observation = {**observation, **policy_io.take_times(observation, time_paths, 1)}
    for path, leaf in self.observation.items():
      value = observation[path]
      words = self.texts.get(path)
      values[leaf.argument] = (words.embed(value) if words else value).astype(
        leaf.dtype
      )
    values.update(state.tensors)
    names = [spec.name for spec in self.function.input_signature]
    outputs = {k: v.numpy() for k, v in self.function(*map(values.get, names)).items()}
    new = {name: outputs.pop(name) for name in self._packed}
    return outputs, PolicyState(new, self.state, state.model_path)


def _convert(function: Any, path: str, weights: str) -> bytes:
  """Returns a function for one environment as a `.tflite` file."""
  with tempfile.TemporaryDirectory() as saved:
    # The converter takes names of arguments and outputs only from a SavedModel.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    signatures = {lite_policy.SIGNATURE: function}
    tf.saved_model.save(tf.Module(), saved, signatures, options)
    converter = tf.lite.TFLiteConverter.from_saved_model(saved, [lite_policy.SIGNATURE])
    return _run_converter(converter, path, weights, function)


def _run_converter(converter: Any, path: str, weights: str, function: Any) -> bytes:
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
  """Converts a signature to a function of one environment, without variables.

  Returns:
    (the function; new dtypes by old ones).
  """
  single_specs = {
    name: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype, name)
    for name, spec in sorted(signature.structured_input_signature[1].items())
  }

  @tf.function(input_signature=list(single_specs.values()), autograph=False)
  def of_one(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    return signature(**dict(zip(single_specs, tensors, strict=True)))

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
    for name, spec in single_specs.items()
  ]

  @tf.function(input_signature=given_specs, autograph=False)
  def step(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    given = dict(zip(inputs, tensors, strict=True))
    results = tf.graph_util.import_graph_def(graph_def, given, outputs, name="")
    return dict(zip(names, results, strict=True))

  return step, changed


def _change_dtypes(graph_def: Any) -> dict[tf.DType, tf.DType]:
  """Changes a graph to dtypes for which LiteRT has ops; returns new dtypes by old ones.

  Dtypes are attributes of nodes, constants, and arguments of functions. A dtype of
  `_REPLACED` stays if any op computes with it: float64 time stamps, for example, need
  their precision.
  """
  nodes = list(_nodes(graph_def))
  replaced = {
    old: new
    for old, new in _REPLACED.items()
    if all(_only_copies(node, old) for node in nodes)
  }
  dtypes = {
    old.as_datatype_enum: (old, new) for old, new in {**_NARROW, **replaced}.items()
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


def _only_copies(node: Any, dtype: tf.DType) -> bool:
  """Whether an op only copies or casts values of a dtype."""
  number = dtype.as_datatype_enum
  if number not in _dtypes(node):
    return True
  if node.op == "Cast":
    # A cast to an unsigned integer wraps around, and one between float64 and integers
    # needs its precision.
    if dtype.is_integer:
      return node.attr["DstT"].type != number
    return all(tf.as_dtype(node.attr[key].type).is_floating for key in ("SrcT", "DstT"))
  return node.op in _COPYING_OPS


def _dtypes(node: Any) -> set[int]:
  attributes = node.attr.values()
  return {each.type for each in attributes}.union(*(a.list.type for a in attributes))


def _nodes(graph_def: Any) -> Iterator[Any]:
  """Yields the nodes of a graph, and of its functions."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def _fix_list_shapes(graph_def: Any) -> None:
  """Sets the batch size of lists in loops to one environment.

  Keras's recurrent layers collect their steps in lists of elements [batch, ...] with an
  unknown batch size, which the converter needs.
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
  """Renames the functions, so that they do not replace the export's."""
  names = {each.signature.name for each in graph_def.library.function}
  for each in graph_def.library.function:
    each.signature.name += suffix
  for node in _nodes(graph_def):
    for value in node.attr.values():
      for named in (value.func, *value.list.func):
        if named.name in names:
          named.name += suffix


def _layout(
  loaded: LoadedExport, step: _Step, content: bytes, weights: str
) -> lite_policy.Layout:
  masks = {path: mask for mask, path in mask_paths(loaded.feature_spec).items()}
  seen = {}
  for path, spec in loaded.feature_spec.items():
    kept = f"history/{path}"
    if isinstance(spec.time_offsets, specs.Seconds):
      continue  # Read by time stamps in the graph alone.
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
    loaded.record.to_fields(),
    loaded.path if "://" in loaded.path else os.path.abspath(loaded.path),
  )


def _numpy(spec: tf.TensorSpec) -> np.dtype:
  return np.dtype(spec.dtype.as_numpy_dtype)


def _compare(
  loaded: LoadedExport, folder: str, tolerance: float, reference: _Step | None = None
) -> tuple[float, tuple[str, ...]]:
  """Steps a folder through two episodes; compares with `reference`, or the export.

  Returns:
    The largest difference, and the outputs that differ between equal calls.
  Raises:
    SpecError: frames differ, or outputs by more than the tolerance.
  """
  model = lite_policy.LiteModel(folder)
  state = model.initial_state()
  runtime: Any = loaded if reference is None else reference
  other = loaded.initial_state() if reference is None else state
  expected: dict[str, list[np.ndarray]] = {}
  given: dict[str, list[np.ndarray]] = {}
  drawn: set[str] = set()
  for number in range(_NUM_STEPS):
    spec = loaded.step_specification()
    observation = specs.make_random_numpy(spec, 1, seed=number)
    for path in model.layout.texts:
      shape = observation[path].shape
      observation[path] = np.full(shape, _TEXTS[number % len(_TEXTS)].encode(), object)
    is_first = number == 3 * _NUM_STEPS // 4
    rows = policy_io.pack(observation, model.step_specification())
    halves = () if reference is not None else model.halves
    wants = _halves_of(loaded, observation, other, is_first, halves)
    wants_again = _halves_of(loaded, observation, other, is_first, halves)
    gots = _halves_of(model, rows, state, is_first, halves)
    again, again_state = runtime.step(observation, other, is_first)
    want, other = runtime.step(observation, other, is_first)
    got, state = model.step(rows, state, is_first)
    for path in state.leaves:
      want[path], got[path], again[path] = other[path], state[path], again_state[path]
    want, got, again = {**want, **wants}, {**got, **gots}, {**again, **wants_again}
    drawn |= {name for name in want if not _is_same(want[name], again[name])}
    for name, value in want.items():
      if value.dtype == object:
        continue  # Texts, for which the lite form keeps vectors.
      mine = got[name][0]
      # LiteRT has no ops for some dtypes.
      expected.setdefault(name, []).append(value[0].astype(mine.dtype, copy=False))
      given.setdefault(name, []).append(mine)
  most, mismatches = 0.0, []
  for name, values in expected.items():
    if name in drawn:
      continue
    right, mine = np.stack(values), np.stack(given[name])
    is_seen = name.removeprefix(f"{lite_policy.OBSERVE}/").startswith("history/")
    if is_seen or right.dtype.kind not in "fc":
      pairs = zip(right, mine, strict=True)
      same = np.array([np.array_equal(*pair, equal_nan=True) for pair in pairs])
      # With rounded weights, integers such as an argmax may differ.
      same |= not is_seen and tolerance == float("inf")
      allowed = ""
    else:
      error = relative_errors(right, mine).reshape([len(right), -1])
      most = max(most, float(error.max(initial=0.0)))
      same = np.all(error <= tolerance, axis=1)
      allowed = f", within {describe_tolerance(tolerance)}"
    if not same.all():
      number = int(np.argmin(same))
      at = f"what the SavedModel gives at step {number}, {_shown(right[number])}"
      mismatches.append(errors.Mismatch(name, f"{at}{allowed}", _shown(mine[number])))
  if mismatches:
    raise errors.mismatch_error(f"export lite: {loaded.path}", mismatches)
  return most, tuple(sorted(drawn - set(state.leaves)))


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
  return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def _halves_of(
  policy: policy_io.PurePolicy,
  observation: Any,
  state: PolicyState,
  is_first: bool,
  names: Collection[str],
) -> dict[str, np.ndarray]:
  """Returns the results of the halves of a step, by 'half/name'."""
  outputs: dict[str, np.ndarray] = {}
  if not names:
    return outputs
  arguments = (observation, state, is_first)
  new = policy.observe(*arguments)
  outputs |= {f"{lite_policy.OBSERVE}/{path}": new[path] for path in new.leaves}
  chunks = policy.plan(*arguments)
  outputs |= {f"{lite_policy.PLAN}/{name}": value for name, value in chunks.items()}
  if lite_policy.REPLAN in names:
    actions = chunks[next(iter(chunks))]
    length = actions.shape[1]
    counts = (np.array([n], np.int32) for n in (length // 4, length // 2))
    # Both forms continue the same numbers.
    prefix = policy_io.Prefix(np.zeros_like(actions) + np.float32(0.1), *counts)
    chunks = policy.plan(*arguments, prefix)
    outputs |= {f"{lite_policy.REPLAN}/{name}": value for name, value in chunks.items()}
  return outputs


def describe_tolerance(tolerance: float) -> str:
  """Describes the tolerance for messages."""
  return f"{100 * tolerance:g} % of each element's range"


def relative_errors(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
  """Returns differences of outputs in units of the range of their element, [N, ...].

  The range of an element of the last axis is that of its expected values at N steps,
  or `1 + |value|` for fewer than 4 steps. The difference is 0 for equal infinities or
  NaN, and infinity for other values that are not finite.
  """
  expected, got = (np.asarray(x).astype(np.float64) for x in (expected, got))
  rows = expected.reshape([-1, expected.shape[-1] if expected.ndim > 1 else 1])
  scale = 1 + np.abs(np.where(np.isfinite(expected), expected, 0))
  if len(expected) >= _FEWEST_STEPS:
    finite = np.ma.masked_invalid(rows)
    ranges = (finite.max(0) - finite.min(0)).filled(0)
    ranges = ranges if expected.ndim > 1 else ranges[0]
    scale = np.maximum(_LEAST_RANGE * scale, ranges)
  with np.errstate(invalid="ignore"):
    error = np.abs(got - expected) / scale
  error = np.where(np.isfinite(error), error, np.inf)
  same = (got == expected) | (np.isnan(got) & np.isnan(expected))
  return np.where(same, 0.0, error)


def _shown(value: np.ndarray) -> str:
  return np.array2string(value.ravel()[:4], precision=6)
