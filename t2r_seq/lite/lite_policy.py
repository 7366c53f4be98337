"""Runs a policy with LiteRT and numpy, without TensorFlow.

`t2r_seq export --lite EXPORT OUT` writes the folder. State and preprocessing are those
of the export; images must be decoded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.lite import policy_io
from t2r_seq.lite.overlap import CHUNK_STEP
from t2r_seq.lite.policy_io import AGE, Leaf, PolicyState, StatefulPolicy
from t2r_seq.lite.sensor_values import push_values
from t2r_seq.lite.texts import HashedWords

FORMAT = "t2r_seq lite policy"
VERSION = 1
LAYOUT_FILE = "policy.json"
STEP_FILE = "step.tflite"
# The functions of an overlapped step, of a policy that executes chunks.
HALVES = OBSERVE, PLAN, REPLAN = "observe", "plan", "replan"
# Arguments of `replan`.
PREFIX = ("prefix_actions", "prefix_num_frozen", "prefix_num_known")
STATE_FILE = "initial_state.npz"
SPECS_FILE = "t2r_assets.pbtxt"
CHECKSUMS_FILE = "checksums.json"
SIGNATURE = "step"
IS_FIRST = "is_first"
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Window:
  """Rows of a window in the frames of the state.

  Attributes:
    state: path of the frames in the state, the newest last.
    offsets: offsets of the window's steps; an int has no stack axis.
    mask: path of its mask; '' without one.
  """

  state: str
  offsets: list[int] | int
  mask: str = ""


@dataclasses.dataclass(frozen=True)
class Layout:
  """Describes the policy of a folder, as JSON.

  Attributes:
    model: identifies the model; states of another are refused.
    global_step: training step of the weights.
    weights: 'float32', 'float16' or 'int8'.
    size: size of the `.tflite` file, bytes.
    observation: arguments of a step's observation, by path.
    state: places of the parts of the state, by path.
    outputs: names of the outputs.
    windows: the windows of the network, by path.
    record: the fields of `PolicyRecord`; None in older folders.
    export: the path of the export; '' in older folders.
  """

  model: str
  global_step: int
  weights: str
  size: int
  observation: dict[str, Leaf]
  state: dict[str, Leaf]
  outputs: list[str]
  windows: dict[str, Window]
  record: dict[str, Any] | None = None
  export: str = ""

  @property
  def texts(self) -> dict[str, HashedWords]:
    """Embedders of texts, by path."""
    texts = (self.record or {}).get("texts") or {}
    return {path: HashedWords(**words) for path, words in texts.items()}

  def to_json(self) -> str:
    """Returns the text of the file that `read` reads."""
    fields = {
      **dataclasses.asdict(self),
      "observation": {path: leaf.to_json() for path, leaf in self.observation.items()},
      "state": {path: leaf.to_json() for path, leaf in self.state.items()},
    }
    return json.dumps({"format": FORMAT, "version": VERSION, **fields}, indent=1)

  @classmethod
  def read(cls, folder: str) -> Layout:
    """Reads a folder's layout.

    Raises:
      SpecError: the folder has no policy, a damaged one, or one of another version.
    """
    fields = _read_json(folder)
    try:
      layout = cls(
        str(fields["model"]),
        int(fields["global_step"]),
        str(fields["weights"]),
        int(fields["size"]),
        {path: Leaf.from_json(leaf) for path, leaf in fields["observation"].items()},
        {path: Leaf.from_json(leaf) for path, leaf in fields["state"].items()},
        list(fields["outputs"]),
        {path: Window(**window) for path, window in fields["windows"].items()},
        fields.get("record"),
        str(fields.get("export", "")),
      )
      layout._check()
      return layout
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
      raise _load_error(folder, f"a whole {LAYOUT_FILE}", f"none: {error!r}") from error

  def _check(self) -> None:
    """Raises TypeError or ValueError if fields have wrong types, or do not fit."""
    _ = self.texts
    period = None if self.record is None else dict(self.record).get("control_period")
    if not isinstance(period, (int, float, type(None))):
      raise TypeError(f"a control_period of {period!r}")
    for path, window in self.windows.items():
      np.asarray(window.offsets, np.int64)
      if window.state not in self.state:
        raise ValueError(f"{path}: no state {window.state!r}")


class _Function:
  """A `.tflite` file as a function of arrays by name.

  Attributes:
    shapes: shapes of the arguments, by name.
    outputs: tensor numbers of the outputs, by name.
  """

  def __init__(self, interpreter: Any) -> None:
    self._interpreter = interpreter
    self._lock = threading.Lock()  # An interpreter has one set of buffers.
    runner = interpreter.get_signature_runner(SIGNATURE)
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    self.shapes = {name: detail["shape"] for name, detail in inputs.items()}
    # Tensors by number: the signature's runner allocates at each call, which costs as
    # much as a small network.
    self._inputs = {name: detail["index"] for name, detail in inputs.items()}
    self.outputs = {name: detail["index"] for name, detail in outputs.items()}

  def __call__(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the outputs; values that are no arguments are ignored."""
    with self._lock:
      for name, index in self._inputs.items():
        self._interpreter.set_tensor(index, values[name])
      self._interpreter.invoke()
      get = self._interpreter.get_tensor
      return {name: get(index) for name, index in self.outputs.items()}


class LiteModel(policy_io.PurePolicy):
  """A lite folder as functions for one environment: a `PurePolicy`.

  Many callers can share it: one step is taken at a time.
  """

  def __init__(
    self, folder: str, num_threads: int = 1, allow_nan: bool = False
  ) -> None:
    """Loads a folder; see `LitePolicy`."""
    self.model_path = str(folder)
    _check_files(self.model_path)
    self.layout = Layout.read(self.model_path)
    self.global_step = self.layout.global_step
    self.control_period = (self.layout.record or {}).get("control_period")
    self._allow_nan = allow_nan
    self._texts = self.layout.texts
    self._step_spec = {
      path: dataclasses.replace(leaf, shape=leaf.shape[:-1], dtype=np.dtype(object))
      if path in self._texts
      else leaf
      for path, leaf in self.layout.observation.items()
    }
    has_times = any(path.startswith(f"{policy_io.STAMPS}/") for path in self._step_spec)
    self.time_paths = [
      path
      for path in self._step_spec
      if path.startswith(f"{policy_io.STAMPS}/")
      or (has_times and path == policy_io.TIMESTAMP)
    ]
    for path in self.time_paths:
      self._step_spec[path] = Leaf(path, (), np.dtype(np.float64))
    self._shapes = {path: (1, *leaf.shape) for path, leaf in self._step_spec.items()}
    stored = _read_state(self.model_path, self.layout)
    self._num_threads = num_threads
    self._step = _Function(
      _load(self.model_path, STEP_FILE, num_threads, self.layout.size)
    )
    try:
      self._initial = _pack_state(stored, self.layout.state, self._step.shapes)
      for name in (*self.layout.outputs, *self._initial):
        _ = self._step.outputs[name]
    except (KeyError, ValueError) as error:
      want, got = f"a {LAYOUT_FILE} that fits {STEP_FILE}", f"another: {error!r}"
      raise _load_error(self.model_path, want, got) from error

  def describe(self) -> dict[str, Any]:
    """Returns 'model' (the folder), 'record' and 'specs' of the policy, for JSON."""
    with open(os.path.join(self.model_path, SPECS_FILE), encoding="utf-8") as f:
      text = f.read()
    return {"model": self.model_path, "record": self.layout.record, "specs": text}

  def step_specification(self) -> dict[str, Leaf]:
    """Returns the shape and dtype of an observation, by path."""
    return self._step_spec

  def initial_state(self, seeds: Sequence[int] = (0,)) -> PolicyState:
    """Returns the state before a first step, of one environment."""
    state = PolicyState(self._initial, self.layout.state, self.layout.model)
    return state.with_seeds(dict(enumerate(seeds)))

  def step(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """See the base class; N is 1."""
    observation = policy_io.with_times(observation, timestamp, stamps)
    outputs = self._step(self._arguments(observation, state, is_first))
    new = {name: outputs.pop(name) for name in self._initial}
    return outputs, PolicyState(new, self.layout.state, self.layout.model)

  @functools.cached_property
  def halves(self) -> dict[str, _Function]:
    """The functions of an overlapped step by name; empty without `--overlap`.

    These are 'observe', 'plan' and, if the network continues a prefix, 'replan'. Each
    has a separate interpreter, so that `observe` can run during `plan`.
    """
    place = self.model_path
    return {
      name: _Function(_load(place, f"{name}.tflite", self._num_threads))
      for name in HALVES
      if os.path.exists(os.path.join(place, f"{name}.tflite"))
    }

  def observe(
    self, observation: Any, state: PolicyState, is_first: Any = False
  ) -> PolicyState:
    """See the base class; N is 1."""
    if OBSERVE not in self.halves:
      raise self._lacks(OBSERVE)
    new = self.halves[OBSERVE](self._arguments(observation, state, is_first))
    return PolicyState(new, self.layout.state, self.layout.model)

  def plan(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    prefix: policy_io.Prefix | None = None,
  ) -> dict[str, np.ndarray]:
    """See the base class; N is 1."""
    name = PLAN if prefix is None else REPLAN
    if name not in self.halves:
      raise self._lacks(name)
    values = self._arguments(observation, state, is_first)
    if prefix is not None:
      prefix = policy_io.check_prefix(prefix, self.halves[name].shapes[PREFIX[0]])
      values.update(zip(PREFIX, prefix, strict=True))
    return self.halves[name](values)

  def _arguments(
    self, observation: Any, state: PolicyState, is_first: Any
  ) -> dict[str, Any]:
    policy_io.check_state(state, self.layout.model)
    observation, state = self._push_sensor_values(observation, state, is_first)
    features = self._checked_features(observation)
    if self.time_paths:
      features |= policy_io.take_times(observation, self.time_paths, 1)
    for path, embedder in self._texts.items():
      features[path] = embedder.embed(features[path])
    values = {
      leaf.argument: features[path] for path, leaf in self.layout.observation.items()
    }
    starts = np.array([policy_io.check_is_first(is_first, 1)])
    return {**values, **state.tensors, IS_FIRST: starts}

  def inspect(
    self, observation: Any, state: PolicyState, is_first: Any = False
  ) -> policy_io.Inspection:
    """Returns raw inputs and outputs of the network at this step; takes no step.

    `inputs` is empty, as are `outputs` of a policy that executes chunks.
    """
    observation, state = self._push_sensor_values(observation, state, is_first)
    outputs, new = self.step(observation, state, is_first)
    seen = self._checked_features(observation)
    for path, window in self.layout.windows.items():
      frames, offsets = new[window.state], np.asarray(window.offsets)
      if path in self._texts:  # The state has vectors for the texts of a window.
        del seen[path]
      else:
        seen[path] = frames[:, offsets + frames.shape[1] - 1]
      if window.mask:
        ages = new[AGE].reshape([-1] + [1] * offsets.ndim)
        seen[window.mask] = ages - 1 + offsets >= 0
    return policy_io.Inspection(seen, {}, {} if CHUNK_STEP in outputs else outputs)

  def _push_sensor_values(
    self, observation: Any, state: PolicyState, is_first: Any
  ) -> tuple[Any, PolicyState]:
    """Moves all but one value of each sensor to the state; see `push_values`."""
    spec, times = self._step_spec, self.time_paths
    return push_values(observation, state, spec, times, is_first, self._allow_nan)

  def _checked_features(self, observation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked features of an observation; texts as UTF-8."""
    spec = {p: leaf for p, leaf in self._step_spec.items() if p not in self.time_paths}
    features: dict[str, Any] = {path: observation.get(path) for path in spec}
    for path in self._texts:
      features[path] = _as_bytes(np.asarray(features[path]))
    for path, leaf in spec.items():
      value = features[path]
      if (
        getattr(value, "shape", None) != self._shapes[path] or value.dtype != leaf.dtype
      ):
        _check("step", {p: v[0] for p, v in features.items() if np.ndim(v)}, spec)
    if not self._allow_nan:
      policy_io.check_finite("step", features, has_envs=True)
    return features


class LitePolicy:
  """Acts from single observations; the loops of `t2r_seq.actors` take it as a policy.

  Attributes:
    pure: the model as functions, whose state the caller keeps.
    layout: description of the folder.
  """

  def __init__(
    self,
    folder: str,
    action_key: str = "inference_output",
    num_threads: int = 1,
    allow_nan: bool = False,
  ) -> None:
    """Loads a policy.

    Args:
      folder: folder from `t2r_seq export --lite`.
      action_key: the output that `sample_action` returns.
      num_threads: number of threads of the interpreter.
      allow_nan: accepts observations with NaN or infinity, which are otherwise an
        error.
    Raises:
      SpecError: the folder is not a lite policy, has another version, lacks a file, a
        file has changed since the export, or there is no output `action_key`.
      ImportError: the interpreter is missing; names the extra.
    """
    self.pure = LiteModel(folder, num_threads, allow_nan)
    self.layout, self.model_path = self.pure.layout, self.pure.model_path
    self.global_step = self.pure.global_step
    self.control_period = self.pure.control_period
    self.is_timed = bool(self.pure.time_paths)
    if action_key not in self.layout.outputs:
      raise errors.SpecError(
        f"lite: {folder}: action_key: expected one of "
        f"{errors.listing(self.layout.outputs)}, got '{action_key}'."
        f"{errors.nearest(action_key, self.layout.outputs)}"
      )
    self._action_key = action_key
    self._envs = {0: StatefulPolicy(self.pure)}

  def step(self, observation: Any) -> dict[str, np.ndarray]:
    """Takes a step of the current episode; returns outputs by name.

    Args:
      observation: a dictionary by path, nested or flat, or one array for one feature;
        no axis of environments. `policy_io.to_spec_dtype` converts numbers.
        With a `timestamp`, in seconds, another rate than in training logs a warning. A
        history by time requires the `timestamp`.
    Raises:
      SpecError: the observation does not fit, or it has NaN or infinity.
    """
    return self._envs[0].step_one(observation)

  def inspect(self, observation: Any) -> policy_io.Inspection:
    """Returns inputs and outputs of the network, [1, ...]; see `LiteModel.inspect`."""
    return self._envs[0].inspect_one(observation)

  def reset(self) -> None:
    """Starts an episode: the next observation is its first."""
    self._envs[0].start_episode()

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the policy's random numbers in an environment repeatable."""
    self._env(env).seed(seed)

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the action, and all outputs, of a `step`; ignores `explore_prob`."""
    del explore_prob
    outputs = self.step(obs)
    return outputs[self._action_key], outputs

  def sample_actions(
    self, observations: Any, is_first: Any, explore_prob: float = 0.0
  ) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Selects an action in each of N environments, one after the other.

    Args:
      observations: a dictionary by path of arrays `[N, ...]`, or one array for one
        feature.
      is_first: bool `[N]`; True where an episode starts, in place of `reset`.
      explore_prob: not used.
    Returns:
      N actions, and all outputs for each.
    Raises:
      SpecError: the observations do not fit, or they have NaN or infinity.
    """
    del explore_prob
    spec = self.pure.step_specification()
    packed = policy_io.pack(observations, spec)
    timestamp = policy_io.timestamp_of(observations, spec)
    times: Any = np.ravel(timestamp)
    samples = []
    for env, starts in enumerate(np.asarray(is_first).tolist()):
      # One `timestamp` for all has no axis of environments.
      row = {
        p: value[env : env + 1] if value.ndim else value for p, value in packed.items()
      }
      time = times if times.size == 1 else times[env : env + 1]
      outputs = self._env(env).step(row, starts, None if timestamp is None else time)
      samples.append({name: value[0] for name, value in outputs.items()})
    return [outputs[self._action_key] for outputs in samples], samples

  def _env(self, env: int) -> StatefulPolicy:
    if env not in self._envs:
      self._envs[env] = StatefulPolicy(self.pure)
      self._envs[env].seed(env)
    return self._envs[env]

  def restore(self) -> bool:
    """Returns True: there is never a newer model than the loaded one."""
    return True


def _pack_state(
  stored: Mapping[str, np.ndarray],
  leaves: Mapping[str, Leaf],
  shapes: Mapping[str, Any],
) -> dict[str, np.ndarray]:
  """Returns a stored state as arguments of a step."""
  columns: dict[str, list[np.ndarray]] = {}
  for path, leaf in sorted(leaves.items(), key=lambda item: item[1].start):
    columns.setdefault(leaf.argument, []).append(stored[path].ravel())
  return {
    name: np.concatenate(parts).reshape(shapes[name]) for name, parts in columns.items()
  }


def _check(
  operation: str, values: Mapping[str, Any], leaves: Mapping[str, Leaf]
) -> None:
  """Compares arrays with specs; names all mismatches."""
  wrong = [
    errors.Mismatch(
      path,
      errors.describe(leaf).replace("object", "string"),
      errors.describe(values.get(path)),
    )
    for path, leaf in leaves.items()
    if getattr(values.get(path), "shape", None) != leaf.shape
    or values[path].dtype != leaf.dtype
  ]
  if wrong:
    raise errors.mismatch_error(operation, wrong)


def _as_bytes(text: np.ndarray) -> np.ndarray:
  """Encodes an array of texts as UTF-8; returns any other array unchanged."""
  values = text.ravel().tolist()
  if not all(isinstance(value, (str, bytes)) for value in values):
    return text
  encoded = [v.encode() if isinstance(v, str) else v for v in values]
  return np.array(encoded, object).reshape(text.shape)


def _load_error(folder: str, expected: str, got: str) -> errors.SpecError:
  mismatch = errors.Mismatch(
    folder, expected, got, "Write it again: t2r_seq export --lite EXPORT OUT"
  )
  return errors.mismatch_error("load lite policy", [mismatch])


def _read_json(folder: str) -> dict[str, Any]:
  try:
    with open(os.path.join(folder, LAYOUT_FILE), encoding="utf-8") as f:
      fields = json.load(f)
  except FileNotFoundError as error:
    raise _load_error(folder, f"a folder with {LAYOUT_FILE}", "none") from error
  except ValueError as error:
    raise _load_error(folder, f"JSON in {LAYOUT_FILE}", str(error)) from error
  if not isinstance(fields, dict) or fields.get("format") != FORMAT:
    raise _load_error(folder, f"a {FORMAT}", f"another {LAYOUT_FILE}")
  if fields.get("version") != VERSION:
    got = f"version {fields.get('version')}"
    raise _load_error(folder, f"version {VERSION} of a {FORMAT}", got)
  return fields


def write_checksums(folder: str) -> None:
  """Writes the CRC-32 of every file of a folder, which `LitePolicy` compares."""
  names = sorted(name for name in os.listdir(folder) if name != CHECKSUMS_FILE)
  checksums = {name: _checksum(os.path.join(folder, name)) for name in names}
  with open(os.path.join(folder, CHECKSUMS_FILE), "w", encoding="utf-8") as f:
    json.dump(checksums, f, indent=1)


def _check_files(folder: str) -> None:
  """Compares files with their checksums, which older folders lack.

  Nothing else detects a flipped bit of a weight.
  """
  path = os.path.join(folder, CHECKSUMS_FILE)
  try:
    with open(path, encoding="utf-8") as f:
      stored = dict(json.load(f))
  except (FileNotFoundError, NotADirectoryError):
    return
  except (TypeError, ValueError) as error:
    raise _load_error(path, "checksums by file", f"a damaged file: {error}") from error
  for name, want in stored.items():
    file = os.path.join(folder, name)
    # The files that a policy needs are reported where they are read.
    got = _checksum(file) if os.path.isfile(file) else want
    if got != want:
      raise _load_error(file, f"the exported file, CRC-32 {want}", f"CRC-32 {got}")


def _checksum(path: str) -> str:
  value = 0
  with open(path, "rb") as f:
    while chunk := f.read(_CHUNK_BYTES):
      value = zlib.crc32(chunk, value)
  return f"{value:08x}"


def _read_state(folder: str, layout: Layout) -> dict[str, np.ndarray]:
  path = os.path.join(folder, STATE_FILE)
  try:
    with np.load(path, allow_pickle=False) as stored:
      state = {path: stored[path] for path in stored.files}
  except FileNotFoundError as error:
    raise _load_error(path, "a file", "none") from error
  except Exception as error:  # A damaged zip file may raise any exception.
    raise _load_error(path, "a state", f"a damaged file: {error}") from error
  _check(f"load lite policy: {path}", state, layout.state)
  return state


def _load(folder: str, name: str, num_threads: int, size: int | None = None) -> Any:
  """Returns the interpreter of a file, with its memory allocated."""
  path = os.path.join(folder, name)
  if not os.path.exists(path):
    raise _load_error(path, "a file", "none")
  if size is not None and os.path.getsize(path) != size:
    raise _load_error(path, f"{size} bytes", f"{os.path.getsize(path)}")
  module = imports.load_extra("ai_edge_litert.interpreter", "lite")
  try:
    interpreter = module.Interpreter(path, num_threads=num_threads)
    interpreter.allocate_tensors()
  except (RuntimeError, ValueError) as error:
    raise _load_error(path, "a model for LiteRT", str(error).strip()) from error
  return interpreter
