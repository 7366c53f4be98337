"""Runs a policy with LiteRT and numpy alone: no TensorFlow in the process.

`t2r_seq export --lite EXPORT OUT` writes the folder. The history of frames, a network's
state and the action chunk in execution are as in the export, and so is what its
preprocessor does; images are given decoded.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.lite import policy_io
from t2r_seq.lite.texts import HashedWords

FORMAT = "t2r_seq lite policy"
VERSION = 1
LAYOUT_FILE = "policy.json"
STEP_FILE = "step.tflite"
STATE_FILE = "initial_state.npz"
SPECS_FILE = "t2r_assets.pbtxt"
CHECKSUMS_FILE = "checksums.json"
SIGNATURE = "step"
IS_FIRST = "is_first"
_CHUNK_BYTES = 1 << 20
AGE, SEED, CHUNK_STEP = "age", "seed", "chunk_step"


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A tensor of one environment.

  Attributes:
    argument: its name in the `.tflite` file.
    shape: without the axis of environments.
    dtype: numpy's.
  """

  argument: str
  shape: tuple[int, ...]
  dtype: np.dtype

  def to_json(self) -> dict[str, Any]:
    """Returns what `from_json` reads."""
    return {
      "argument": self.argument,
      "shape": list(self.shape),
      "dtype": self.dtype.name,
    }

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> Leaf:
    """Reads what `to_json` gave."""
    return cls(value["argument"], tuple(value["shape"]), np.dtype(value["dtype"]))


@dataclasses.dataclass(frozen=True)
class Window:
  """How a window is read from the frames that are kept.

  Attributes:
    state: path of the frames in the state, the newest last.
    offsets: of the steps that the window shows; an int has no stack axis.
    mask: path of its mask; '' without one.
  """

  state: str
  offsets: list[int] | int
  mask: str = ""


@dataclasses.dataclass(frozen=True)
class Layout:
  """What a folder says of its policy, as JSON.

  Attributes:
    model: names the model; states of another are refused.
    global_step: that it was trained to.
    weights: 'float32', 'float16' or 'int8'.
    size: of the `.tflite` file, bytes.
    observation: what a step takes, by path.
    state: what is remembered, by path.
    outputs: names of what a step gives.
    windows: what the network sees, by path.
    record: the fields of `policies.PolicyRecord`; None of older folders.
    export: where the export was that it was made of; '' of older folders.
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
    """How to embed the texts of a path, for which the network takes vectors."""
    texts = (self.record or {}).get("texts") or {}
    return {path: HashedWords(**words) for path, words in texts.items()}

  def to_json(self) -> str:
    """Returns the text of the file."""
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
      SpecError: the folder holds none, or one of another version.
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
    """Raises an error if fields are of another type, or contradict each other."""
    _ = self.texts
    period = None if self.record is None else dict(self.record).get("control_period")
    if not isinstance(period, (int, float, type(None))):
      raise TypeError(f"a control_period of {period!r}")
    for path, window in self.windows.items():
      np.asarray(window.offsets, np.int64)
      if window.state not in self.state:
        raise ValueError(f"{path}: no state {window.state!r}")


class LitePolicy:
  """Acts in one environment, from single observations.

  `step` and `reset` remember by themselves; `stateless_step` and `initial_state` leave
  the state to the caller, so that many can share a loaded policy. The loops of
  `t2r_seq.actors` take it as a policy.
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
      folder: as `t2r_seq export --lite` wrote it.
      action_key: the output that `sample_action` gives.
      num_threads: of the interpreter.
      allow_nan: accepts observations with NaN or infinity, which are otherwise an
        error.
    Raises:
      SpecError: the folder is no lite policy, is of another version, lacks a file, or
        a file has changed since the export.
      ImportError: the interpreter is missing; names the extra.
    """
    self.model_path = str(folder)
    _check_files(self.model_path)
    self.layout = Layout.read(self.model_path)
    if action_key not in self.layout.outputs:
      raise errors.SpecError(
        f"lite: {folder}: action_key: expected one of "
        f"{errors.listing(self.layout.outputs)}, got '{action_key}'."
        f"{errors.nearest(action_key, self.layout.outputs)}"
      )
    self._action_key = action_key
    self._allow_nan = allow_nan
    self._texts = self.layout.texts
    self._step_spec = {
      path: dataclasses.replace(leaf, shape=leaf.shape[:-1], dtype=np.dtype(object))
      if path in self._texts
      else leaf
      for path, leaf in self.layout.observation.items()
    }
    self._initial = _read_state(self.model_path, self.layout)
    self._lock = threading.Lock()  # An interpreter has one set of buffers.
    self._interpreter = _load(self.model_path, self.layout.size, num_threads)
    runner = self._interpreter.get_signature_runner(SIGNATURE)
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    # By number: a signature's runner allocates at each call, which costs as much as a
    # small network.
    self._inputs = {name: detail["index"] for name, detail in inputs.items()}
    self._outputs = {name: detail["index"] for name, detail in outputs.items()}
    self._state = self.initial_state()
    self._is_first = True
    self._others: dict[int, policy_io.PolicyState] = {}
    self._watch = policy_io.RateWatch(self.control_period)

  @property
  def global_step(self) -> int:
    """The training step of the model."""
    return self.layout.global_step

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if that is known."""
    return (self.layout.record or {}).get("control_period")

  def describe(self) -> dict[str, Any]:
    """Returns what the policy tells of itself; see `policies.StatelessPolicy`."""
    with open(os.path.join(self.model_path, SPECS_FILE), encoding="utf-8") as f:
      text = f.read()
    return {"model": self.model_path, "record": self.layout.record, "specs": text}

  def step_specification(self) -> dict[str, Leaf]:
    """Returns what a step takes, by path, without the axis of environments."""
    return dict(self._step_spec)

  def initial_state(self, seed: int = 0) -> policy_io.PolicyState:
    """Returns what is remembered before a first step.

    Args:
      seed: of what the policy draws, if it draws.
    """
    state = {path: value.copy() for path, value in self._initial.items()}
    if SEED in state:
      wrapped = np.array([seed & 0xFFFFFFFF, 0], np.uint32)
      state[SEED] = wrapped.view(np.int32)
    return policy_io.PolicyState(state, self.layout.model)

  def stateless_step(
    self, observation: Any, state: policy_io.PolicyState, is_first: bool = False
  ) -> tuple[dict[str, np.ndarray], policy_io.PolicyState]:
    """Takes a step with a state that the caller keeps.

    Args:
      observation: a dictionary by path, nested or flat, or one array for one feature;
        no axis of environments. `policy_io.to_spec_dtype` converts numbers.
      state: of `initial_state`, or of the step before.
      is_first: whether an episode begins, as it does at a first step.
    Returns:
      (outputs by name; the next state).
    Raises:
      SpecError: the observation does not fit, it has NaN or infinity, or the state is
        of another model.
    """
    if getattr(state, "model_path", None) != self.layout.model:
      raise errors.SpecError(
        f"stateless_step: state: expected one of the model {self.layout.model}, got "
        f"one of {getattr(state, 'model_path', 'none') or 'none'}. Begin an episode "
        "with initial_state()."
      )
    given = self._pack(observation)
    _check("step", given, self._step_spec)
    if not self._allow_nan:
      policy_io.check_finite("step", given)
    for path, words in self._texts.items():
      given[path] = words.embed(given[path])
    _check("step: state", state, self.layout.state)
    with self._lock:
      put, get = self._interpreter.set_tensor, self._interpreter.get_tensor
      for leaves, values in (
        (self.layout.observation, given),
        (self.layout.state, state),
      ):
        for path, leaf in leaves.items():
          put(self._inputs[leaf.argument], values[path][np.newaxis])
      put(self._inputs[IS_FIRST], np.array([is_first]))
      self._interpreter.invoke()
      outputs = {name: get(self._outputs[name])[0] for name in self.layout.outputs}
      new = {
        path: get(self._outputs[leaf.argument])[0]
        for path, leaf in self.layout.state.items()
      }
    return outputs, policy_io.PolicyState(new, self.layout.model)

  def _pack(self, observation: Any) -> dict[str, np.ndarray]:
    """Returns what a step takes, by path; texts as UTF-8."""
    given = policy_io.pack(observation, self._step_spec)
    return {
      path: _as_bytes(value) if path in self._texts else value
      for path, value in given.items()
    }

  def inspect_step(
    self, observation: Any, state: policy_io.PolicyState, is_first: bool = False
  ) -> policy_io.Inspection:
    """Tells what the network is given at such a step, `[1, ...]`; no step is taken.

    What preprocessing makes of it, and what the network says where chunks are executed,
    is inside of the `.tflite` file, and not told.
    """
    outputs, new = self.stateless_step(observation, state, is_first)
    seen = {**self._pack(observation), **self.windows(new)}
    for path in self._texts:  # The state has vectors of what a window shows.
      if path in self.layout.windows:
        del seen[path]
    is_whole = CHUNK_STEP not in outputs
    return policy_io.Inspection(
      {path: value[np.newaxis] for path, value in seen.items()},
      {},
      {name: value[np.newaxis] for name, value in outputs.items() if is_whole},
    )

  def step(self, observation: Any) -> dict[str, np.ndarray]:
    """Takes a step of the episode in hand; returns outputs by name.

    Has the observation a `timestamp`, in seconds, there is a warning where observations
    come at another rate than the steps of training did.
    """
    timestamp = policy_io.timestamp_of(observation, self.layout.observation)
    if timestamp is not None:
      self._watch.see(timestamp, self._is_first)
    outputs, self._state = self.stateless_step(observation, self._state, self._is_first)
    self._is_first = False
    return outputs

  def reset(self) -> None:
    """Begins an episode: the next observation is its first."""
    self._is_first = True

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes what the policy draws in an environment repeatable from here on."""
    state = self._state_of(env)
    if SEED in state:
      state[SEED] = self.initial_state(seed)[SEED]

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the action for an observation, and all outputs beside it."""
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
      is_first: bool `[N]`; where an episode starts, which takes the place of `reset`.
      explore_prob: not used.
    Returns:
      N actions, and all outputs for each.
    """
    del explore_prob
    packed = policy_io.pack(observations, self.layout.observation)
    timestamp = policy_io.timestamp_of(observations, self.layout.observation)
    if timestamp is not None:
      self._watch.see(timestamp, is_first)
    said = []
    for env, begins in enumerate(np.asarray(is_first).tolist()):
      alone = {path: value[env] for path, value in packed.items()}
      outputs, state = self.stateless_step(alone, self._state_of(env), begins)
      if env:
        self._others[env] = state
      else:
        self._state, self._is_first = state, False
      said.append(outputs)
    return [outputs[self._action_key] for outputs in said], said

  def _state_of(self, env: int) -> policy_io.PolicyState:
    """Returns the state of an environment; the first is that of `step`."""
    if env == 0:
      return self._state
    return self._others.setdefault(env, self.initial_state(env))

  def restore(self) -> bool:
    """Returns True: the model that is loaded is the only one."""
    return True

  def windows(
    self, state: Mapping[str, np.ndarray] | None = None
  ) -> dict[str, np.ndarray]:
    """Returns what the network saw at the last step, and its masks, by path.

    Texts are vectors by then.

    Args:
      state: that the step returned; None for that of `step`.
    """
    state = self._state if state is None else state
    found = {}
    for path, window in self.layout.windows.items():
      frames, offsets = state[window.state], np.asarray(window.offsets)
      found[path] = frames[offsets + len(frames) - 1]
      if window.mask:
        found[window.mask] = state[AGE] - 1 + offsets >= 0
    return found


def _check(
  operation: str, values: Mapping[str, Any], leaves: Mapping[str, Leaf]
) -> None:
  """Compares arrays with what is asked for; all that is wrong is named."""
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
  """Returns an array of texts as objects; anything else unchanged."""
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
  found = {name: _checksum(os.path.join(folder, name)) for name in names}
  with open(os.path.join(folder, CHECKSUMS_FILE), "w", encoding="utf-8") as f:
    json.dump(found, f, indent=1)


def _check_files(folder: str) -> None:
  """Compares files with their checksums, which older folders lack.

  A flipped bit of a weight gives other actions, and nothing else shows it.
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
  except Exception as error:  # A damaged zip file raises whatever its bytes lead to.
    raise _load_error(path, "a state", f"a damaged file: {error}") from error
  _check(f"load lite policy: {path}", state, layout.state)
  return state


def _load(folder: str, size: int, num_threads: int) -> Any:
  """Returns the interpreter, with its memory allocated."""
  path = os.path.join(folder, STEP_FILE)
  if not os.path.exists(path):
    raise _load_error(path, "a file", "none")
  if os.path.getsize(path) != size:
    raise _load_error(path, f"{size} bytes", f"{os.path.getsize(path)}")
  module = imports.load_extra("ai_edge_litert.interpreter", "lite")
  try:
    interpreter = module.Interpreter(path, num_threads=num_threads)
    interpreter.allocate_tensors()
  except (RuntimeError, ValueError) as error:
    raise _load_error(path, "a model for LiteRT", str(error).strip()) from error
  return interpreter
