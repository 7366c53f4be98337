"""Saves transitions, those of cpprb's files too, as the episodes of a store."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import EpisodeStore
from t2r_seq.transitions.loading import KEY, FrameStack, TransitionsMetadata
from t2r_seq.windows import Cut, NStep
from t2r_seq.windows.n_step import TransitionFields

_OPERATION = "save_transitions"
# Bytes of the blocks in which arrays, which may be memory maps, are read.
_BLOCK_BYTES = 1 << 22


def _check_arrays(
  arrays: Mapping[str, np.ndarray],
  fields: TransitionFields,
  stacks: Mapping[str, FrameStack],
) -> specs.TensorSpecStruct:
  """Checks dtypes, lengths and values of arrays by path; returns the store's specs."""
  mismatches = [
    problem for p in fields.paths if (problem := _dtype_problem(p, arrays[p]))
  ]
  if not mismatches:
    mismatches = [*_shape_problems(arrays, fields)]
  if not mismatches:
    mismatches = [*_value_problems(arrays, fields)]
  if not mismatches:
    mismatches = [
      problem
      for path, of in fields.next_of.items()
      if of in stacks
      for problem in _stack_problems(path, arrays[path], of, arrays[of], stacks[of])
    ]
  if mismatches:
    raise errors.mismatch_error(_OPERATION, mismatches)
  return specs.TensorSpecStruct(
    (path, _column_spec(_newest_frames(arrays[path][:1], stacks.get(path))))
    for path in fields.stored_paths
  )


def _find_stacks(
  operation: str,
  stacked: Mapping[str, int],
  arrays: Mapping[str, np.ndarray],
  fields: TransitionFields,
) -> dict[str, FrameStack]:
  """Returns the frame stacks by path; `stacked` is that of `save_transitions`."""
  stacks: dict[str, FrameStack] = {}
  mismatches = []
  observed = list(fields.next_of.values())
  for name, axis in stacked.items():
    paths = [p for p in observed if p == name or p.startswith(f"{name}/")]
    if not paths:
      want = f"one of {errors.listing(observed)}"
      mismatches.append(
        errors.Mismatch(f"stacked: {name}", want, "no such observation")
      )
    for path in paths:
      shape = arrays[path].shape[1:]
      if -len(shape) <= axis < len(shape) and shape[axis]:
        stacks[path] = FrameStack(shape[axis], axis % len(shape))
      else:
        want = f"an observation with frames on axis {axis}"
        mismatches.append(errors.Mismatch(path, want, f"the shape {shape}"))
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)
  return stacks


def _newest_frames(array: np.ndarray, stack: FrameStack | None) -> np.ndarray:
  """Returns the newest frame of each stack [N, ...]; without a stack, the array."""
  return array if stack is None else np.take(array, -1, stack.axis + 1)


def _frames(array: np.ndarray, stack: FrameStack, part: slice) -> np.ndarray:
  """Returns some frames of each stack, [N, frames, ...]."""
  return np.moveaxis(array, stack.axis + 1, 1)[:, part]


def _stack_problems(
  path: str, following: np.ndarray, of: str, now: np.ndarray, stack: FrameStack
) -> Iterator[errors.Mismatch]:
  """Yields the first transition whose next stack is not its stack and a new frame."""
  older, newer = slice(None, -1), slice(1, None)
  for rows in _blocks(now, len(following)):
    same = same_rows(
      _frames(following[rows], stack, older), _frames(now[rows], stack, newer)
    )
    if not same.all():
      index = rows.start + np.flatnonzero(~same)[0]
      yield errors.Mismatch(
        path,
        f"the last {stack.num_frames - 1} frames of {of}, and a new one",
        f"others at {index}",
        f"Is axis {stack.axis} that of the frames, the oldest first? If these are not "
        "stacks of consecutive frames, save them unchanged.",
      )
      return


def frames_of_stacks(stacks: np.ndarray, axis: int = 0) -> np.ndarray:
  """Undoes frame stacking, such as Gymnasium's: returns the newest frame of each step.

  Args:
    stacks: [T, ...] of one episode, T >= 1, one stack per step, oldest frame first.
    axis: axis of the frames in a stack, not counting the axis of steps.
  Returns:
    [T, ...], the newest frame of each step.
  Raises:
    SpecError: a stack is not the previous one plus a frame; earlier frames of the first
      one are neither copies of its newest frame nor zeros; or `axis` is invalid.
  """
  arrays = {"stacks": stacks[:-1], "next_stacks": stacks[1:]}
  fields = TransitionFields((), {"next_stacks": "stacks"}, (), "", "", None)
  stack = _find_stacks("frames_of_stacks", {"stacks": axis}, arrays, fields)["stacks"]
  mismatches = list(
    _stack_problems("stacks", stacks[1:], "the step before", stacks, stack)
  )
  first = _front_padding({"stacks": stacks}, {"stacks": stack}, np.zeros(1, int))
  if not mismatches and first == "drop":
    want = "a first stack of its newest frame repeated, or of zeros before it"
    mismatches = [
      errors.Mismatch("stacks", want, "others", "Does the episode begin there?")
    ]
  if mismatches:
    raise errors.mismatch_error("frames_of_stacks", mismatches)
  return _newest_frames(stacks, stack)


def _blocks(like: np.ndarray, num: int) -> Iterator[slice]:
  """Yields slices of the first `num` rows, each of about `_BLOCK_BYTES`."""
  block = max(1, _BLOCK_BYTES // max(1, like[:1].nbytes))
  for start in range(0, num, block):
    yield slice(start, min(start + block, num))


def _front_padding(
  arrays: Mapping[str, np.ndarray], stacks: Mapping[str, FrameStack], firsts: np.ndarray
) -> str:
  """Returns the padding of the stacks of chains' first transitions.

  It is 'repeat' or 'zero', or 'drop' if these stacks have other frames.
  """
  kinds = {"repeat", "zero"}
  for path, stack in stacks.items():
    for first in firsts:
      rows = _frames(arrays[path][first : first + 1], stack, slice(None))[0]
      if not same_rows(rows[:-1], np.broadcast_to(rows[-1:], rows[:-1].shape)).all():
        kinds.discard("repeat")
      if not same_rows(rows[:-1], np.zeros_like(rows[:-1])).all():
        kinds.discard("zero")
      if not kinds:
        return "drop"
  return "repeat" if "repeat" in kinds else "zero"


def _column_spec(array: np.ndarray) -> specs.ExtendedTensorSpec:
  dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
  return specs.ExtendedTensorSpec(array.shape[1:], dtype, is_sequence=True)


def _dtype_problem(path: str, array: np.ndarray) -> errors.Mismatch | None:
  want = "an array [N, ...] of numbers or bytes objects"
  if not array.ndim:
    return errors.Mismatch(path, want, errors.describe(array))
  if array.dtype == object:
    others = (item for item in array.flat if not isinstance(item, bytes))
    other = next(others, None)
    if other is None:
      return None
    return errors.Mismatch(path, want, f"objects, a {type(other).__name__} among them")
  try:
    tf.as_dtype(array.dtype.newbyteorder("="))
  except TypeError:
    return errors.Mismatch(path, want, errors.describe(array), "Convert it.")
  if array.dtype.kind in "SU":
    hint = "Such arrays lose zeros at the end: use array.astype(object)."
    return errors.Mismatch(path, want, errors.describe(array), hint)
  return None


def _shape_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  num = len(arrays[fields.done])
  if not num:
    yield errors.Mismatch(fields.done, "at least one transition", "none")
  for path in fields.paths:
    if len(arrays[path]) != num:
      want = f"{num} transitions, as {fields.done} has"
      yield errors.Mismatch(path, want, str(len(arrays[path])))
  for path, of in fields.next_of.items():
    got, expected = (
      (arrays[p].shape[1:], arrays[p].dtype.newbyteorder("=")) for p in (path, of)
    )
    if got != expected:
      want = f"rows of {expected[0]} {expected[1]}, as {of} has"
      yield errors.Mismatch(path, want, f"rows of {got[0]} {got[1]}")


def _value_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path in fields.flags:
    array, want = arrays[path], "one 0 or 1 for each transition"
    if array.size != len(array) or array.dtype.kind not in "biuf":
      yield errors.Mismatch(path, want, errors.describe(array))
    elif (others := array[(array != 0) & (array != 1)]).size:
      yield errors.Mismatch(path, want, f"a {others.flat[0]!r}")
  for path in fields.rewards:
    dtype = _column_spec(arrays[path]).dtype
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
      got = errors.describe(arrays[path])
      yield errors.Mismatch(path, "a reward of real numbers", got)


def chain_ends(
  transitions: Mapping[str, np.ndarray], fields: TransitionFields
) -> np.ndarray:
  """Returns the index after the last transition of each chain, int64 [chains].

  A chain ends at `done` or `truncated`, or if the next observation differs from the
  observation of the following transition, in any bit of any path.
  """
  num = len(transitions[fields.done])
  is_last = np.zeros(num, bool)
  is_last[-1] = True
  for flag in fields.flags:
    is_last |= np.asarray(transitions[flag]).reshape(num) != 0
  for path, of in fields.next_of.items():
    following, now = transitions[path], transitions[of]
    for rows in _blocks(now, num - 1):
      same = same_rows(following[rows], now[rows.start + 1 : rows.stop + 1])
      is_last[rows] |= ~same
  return np.flatnonzero(is_last) + 1


def same_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Returns which rows are equal bit for bit, bool [N], in any byte orders."""
  if not left.size:
    return np.ones(len(left), bool)
  if left.dtype == object:
    return (left == right).reshape(len(left), -1).all(1)
  return (_words(left) == _words(right)).all(1)


def _words(array: np.ndarray) -> np.ndarray:
  """Views rows as unsigned integers of the largest possible size."""
  native = array.astype(array.dtype.newbyteorder("="), copy=False)
  rows = np.ascontiguousarray(native).reshape(len(array), -1)
  row_bytes = rows.shape[1] * rows.dtype.itemsize
  width = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
  return rows.view(f"u{width}")


def save_transitions(
  path: str | os.PathLike[str],
  transitions: Any,
  rew: str = "rew",
  done: str = "done",
  truncated: str = "truncated",
  n_step: tuple[int, float] | NStep | None = None,
  metadata: Mapping[str, Any] | None = None,
  stacked: Mapping[str, int] | None = None,
) -> int:
  """Saves flat transitions as a store that has each observation once.

  The transitions are cut into chains: runs in which each next observation is the
  following observation, bit for bit, up to a terminal or a truncation. A chain of T
  transitions becomes an episode of T + 1 rows, after earlier frames of its first stacks
  if those are not padded. The last row has the last next observation, and zeros in the
  other fields. Arrays may be memory maps; they are read in blocks. `load_transitions`
  raises for an incomplete store.

  >>> import numpy as np
  >>> from t2r_seq import store, transitions
  >>> states = np.arange(4, dtype=np.float32)[:, None]
  >>> flat = {"obs": states[:3], "next_obs": states[1:], "act": np.zeros((3, 1)),
  ...         "rew": np.ones((3, 1)), "done": np.array([[0], [0], [1]])}
  >>> transitions.save_transitions("demo", flat)
  1
  >>> store.EpisodeStore("demo").column("obs")[:, 0].tolist()
  [0.0, 1.0, 2.0, 3.0]

  Args:
    path: path of the folder; it must be missing or empty.
    transitions: arrays [N, ...] in one structure, in time order: obs, act, rew,
      next_obs, done and others. A field `next_x` is the next `x`; both may be nested
      dicts, such as obs/image and obs/state. Arrays of byte strings have dtype object.
    rew: path of the reward, or of a nested dict of rewards.
    done: path of the terminal flag, [N] or [N, 1], 0 or 1 of any dtype.
    truncated: path of an optional truncation flag; truncations end a chain.
    n_step: (n, gamma) if the rewards are n-step returns already, and the next
      observations n steps away; None for one-step transitions.
    metadata: further JSON values of the store.
    stacked: frame axis by the path of observations that are stacks of frames, oldest
      first; it does not count the batch axis. {'obs': 0} for Gymnasium's
      `FrameStackObservation`, {'obs': -1} for cpprb's `stack_compress`. Each frame is
      stored once, and reading restores the stacks.
  Returns:
    The number of chains.
  Raises:
    SpecError: fields are missing, their lengths, dtypes, values or stacks do not match,
      or another argument is invalid; nothing is written.
    StoreError: the path is in use.
    OSError: the folder can't be written, or the disk is full.
  """
  declared = NStep.of(n_step)
  arrays = _to_arrays(transitions)
  fields = TransitionFields.from_paths(_OPERATION, arrays, rew, done, truncated)
  stacks = _find_stacks(_OPERATION, stacked or {}, arrays, fields)
  if stacks and declared is not None:
    raise errors.SpecError(
      f"{_OPERATION}: stacked: expected one-step transitions, got {declared}. Their "
      "stacks are several frames apart: save one-step ones, or leave `stacked` out."
    )
  spec = _check_arrays(arrays, fields, stacks)
  num = len(arrays[fields.done])
  if KEY in (metadata or {}):
    raise errors.SpecError(
      f"{_OPERATION}: metadata: expected keys other than '{KEY}', got it. It is where "
      "the store's metadata describe its transitions."
    )
  ends = chain_ends(arrays, fields)
  starts = np.concatenate([[0], ends[:-1]])
  padding = _front_padding(arrays, stacks, starts) if stacks else "drop"
  most = max((stack.num_frames for stack in stacks.values()), default=1)
  num_before = 0 if Cut(padding=padding).pads_front else most - 1
  saved = TransitionsMetadata(fields, declared, num, stacks, padding, num_before)
  about = saved.to_json_dict()
  with EpisodeStore.create(
    path, spec, {**(metadata or {}), KEY: about}, commit_every=len(ends), allow_nan=True
  ) as writer:
    for start, end in zip(starts, ends, strict=True):
      if num_before:
        writer.append_steps(_rows_before(arrays, saved, int(start)))
      for rows in _chain_rows(arrays, saved, int(start), int(end)):
        writer.append_steps(rows)
      writer.end_episode()
  return len(ends)


def _to_arrays(transitions: Any) -> dict[str, np.ndarray]:
  try:
    flat = specs.flatten_spec_structure(transitions)
  except errors.SpecError as error:
    raise errors.SpecError(
      f"{_OPERATION}: expected a structure of arrays [N, ...]. {error}"
    ) from error
  return {
    path: leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    for path, leaf in flat.items()
  }


def _rows_before(
  arrays: Mapping[str, np.ndarray], about: TransitionsMetadata, start: int
) -> dict[str, np.ndarray]:
  """Returns the earlier frames of a chain's first stacks, and zeros elsewhere."""
  rows = {}
  for path in about.fields.stored_paths:
    stack, first = about.stacks.get(path), arrays[path][start : start + 1]
    frame = _newest_frames(first, stack)
    rows[path] = np.full(
      (about.num_before, *frame.shape[1:]), _zero(frame.dtype), frame.dtype
    )
    if stack is not None and stack.num_frames > 1:
      rows[path][1 - stack.num_frames :] = _frames(first, stack, slice(-1))[0]
  return rows


def _chain_rows(
  arrays: Mapping[str, np.ndarray], about: TransitionsMetadata, start: int, end: int
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the rows of one chain in blocks; the last block has the final row."""
  fields = about.fields

  def take(path: str, first: int, last: int, of: str | None = None) -> np.ndarray:
    return _newest_frames(arrays[path][first:last], about.stacks.get(of or path))

  row_bytes = max(1, sum(arrays[path][:1].nbytes for path in fields.stored_paths))
  block = max(1, _BLOCK_BYTES // row_bytes)
  last_block = start + (end - start - 1) // block * block
  for first in range(start, last_block, block):
    yield {path: take(path, first, first + block) for path in fields.stored_paths}
  finals = {of: take(path, end - 1, end, of) for path, of in fields.next_of.items()}
  rows = {}
  for path in fields.stored_paths:
    values = take(path, last_block, end)
    final = finals.get(path)
    if final is None:
      final = np.full((1, *values.shape[1:]), _zero(values.dtype), values.dtype)
    rows[path] = np.concatenate([values, final])
  yield rows


def _zero(dtype: np.dtype) -> Any:
  return b"" if dtype.hasobject else 0


# The pickles in cpprb's files run no code when they are read: instead of three names of
# numpy, the only ones allowed, they call the stand-ins below.
# An array takes about 40 operations; a million nested tuples overflow the C stack.
_MAX_OPERATIONS = 20_000
_DTYPES = re.compile(r"[biufc]\d{1,2}|O8?")
_BYTE_ORDERS = ("<", ">", "|", "=")
_PLAIN = (bool, int, float, str, bytes, type(None))


def read_pickled_arrays(file: IO[bytes]) -> Any:
  """Reads an array or a plain value, or a dict of these, from a seekable pickle.

  Arrays are read-only. Raises ValueError for damage, and for anything else in it.
  """
  try:
    _check_sizes(file)
    value = _Unpickler(file).load()
  except (_RefusedError, OSError):
    raise
  except Exception as error:  # Damaged bytes raise anything.
    raise _RefusedError(f"damaged bytes ({error})") from error
  if isinstance(value, _Array):
    value = value.content()
  if not isinstance(value, dict):
    return _numbers(value)
  for name in value:
    if not isinstance(name, str):
      raise _RefusedError(f"a {type(name).__name__} as a name")
  return {name: _numbers(item) for name, item in value.items()}


class _RefusedError(ValueError):
  """A pickle that is damaged, or has other things than arrays and plain values."""


def _check_sizes(file: IO[bytes]) -> None:
  """Checks the number of operations, and memo indices, which `pickle` allocates."""
  start = file.tell()
  for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
    if count >= _MAX_OPERATIONS:
      raise _RefusedError(f"more than {_MAX_OPERATIONS} operations")
    if "PUT" in opcode.name and (argument or 0) > count:
      raise _RefusedError(f"a value numbered {argument}")
  file.seek(start)


class _Unpickler(pickle.Unpickler):
  """Unpickles plain values and the stand-ins below."""

  def find_class(self, module: str, name: str) -> Any:
    """Returns the stand-in of a name."""
    try:
      return _STAND_INS[module.replace("_core", "core"), name]
    except KeyError:
      raise _RefusedError(f"the name {module}.{name}, which is code") from None


class _Dtype:
  """Stand-in for `numpy.dtype`, which would not check its state."""

  __slots__ = ("dtype",)

  def __init__(self, name: str, *_: Any) -> None:
    if not isinstance(name, str) or not _DTYPES.fullmatch(name):
      raise _RefusedError(f"a dtype {name!r:.60}")
    self.dtype = np.dtype(name)

  def __setstate__(self, state: Any) -> None:
    if state[1] not in _BYTE_ORDERS:
      raise _RefusedError(f"the byte order {state[1]!r:.60}")
    self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
  """Stand-in for `numpy.ndarray` and its constructor."""

  __slots__ = ("_objects", "numbers")

  def __init__(self, *_: Any) -> None:
    self.numbers: np.ndarray | None = None
    self._objects: list[Any] = []

  def __setstate__(self, state: Any) -> None:
    _, shape, of, is_fortran, data = state
    if of.dtype.hasobject:
      if shape != () or type(data) is not list or len(data) != 1:
        raise _RefusedError("an array of several objects")
      self._objects = data
    elif min(shape, default=0) < 0:
      raise _RefusedError(f"the shape {shape}")
    else:
      flat = np.frombuffer(data, of.dtype)
      self.numbers = flat.reshape(shape, order="F" if is_fortran else "C")

  def content(self) -> Any:
    """Returns the only object of an array of objects, or itself."""
    return self._objects[0] if self._objects else self


_STAND_INS = {
  ("numpy.core.multiarray", "_reconstruct"): _Array,
  ("numpy", "ndarray"): _Array,
  ("numpy", "dtype"): _Dtype,
}


def _numbers(value: Any) -> Any:
  """Returns an array of numbers or a plain value."""
  if isinstance(value, _Array) and value.numbers is not None:
    return value.numbers
  if type(value) in _PLAIN:
    return value
  kind = "array of objects" if isinstance(value, _Array) else type(value).__name__
  raise _RefusedError(f"a value of type {kind}, which is not an array of numbers")


_IMPORT = "import_cpprb"
_VERSION = 1
_SAFE_WAY = (
  "In cpprb, load it into a buffer and write it with buffer.save_transitions(file, "
  "safe=True), or with numpy.savez(file, **buffer.get_all_transitions())."
)
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def import_cpprb(
  npz_path: str | os.PathLike[str],
  store_path: str | os.PathLike[str],
  rew: str = "rew",
  done: str = "done",
  truncated: str = "truncated",
  n_step: tuple[int, float] | NStep | None = None,
  metadata: Mapping[str, Any] | None = None,
  stacked: Mapping[str, int] | None = None,
) -> int:
  """Saves the transitions of a cpprb file by `save_transitions`.

  Reads files of `buffer.save_transitions(file)`, whose pickled arrays are read without
  running code, and of `numpy.savez(file, **buffer.get_all_transitions())`. cpprb is not
  needed.

  Args:
    npz_path: path of cpprb's file, written with safe=True, its default.
    store_path: path of the store; it must be missing or empty.
    rew: name of the reward; this and the rest as in `save_transitions`.
    done: name of the terminal flag.
    truncated: name of the optional truncation flag.
    n_step: (n, gamma) of the buffer if it had `Nstep`; else None.
    metadata: further JSON values of the store.
    stacked: {'obs': -1} for a buffer with `stack_compress='obs'`; see
      `save_transitions`. The file has no record of it.
  Returns:
    The number of chains.
  Raises:
    SpecError: the file is not cpprb's, or newer, damaged, of safe=False or with values
      other than arrays; `n_step` does not match it; or the transitions are invalid.
    StoreError: `store_path` is in use.
    OSError: the file can't be read, or the folder can't be written.
  """
  place = os.fspath(npz_path)
  declared = NStep.of(n_step)
  try:
    with zipfile.ZipFile(place) as archive:
      transitions = _read(place, archive, declared)
  except (OSError, errors.SpecError):
    raise
  except Exception as error:  # Damaged bytes raise anything.
    raise errors.SpecError(
      f"{_IMPORT}: {place}: expected a .npz file of cpprb, got {error}."
    ) from error
  return save_transitions(
    store_path, transitions, rew, done, truncated, declared, metadata, stacked
  )


def _read(place: str, archive: zipfile.ZipFile, declared: NStep | None) -> Any:
  names = [name.removesuffix(".npy") for name in archive.namelist()]
  if "data" not in names or "version" not in names:
    return {name: _read_member(place, archive, name) for name in names}
  version = _read_flag(place, archive, "version")
  if version != _VERSION:
    raise errors.SpecError(
      f"{_IMPORT}: {place}: expected format version {_VERSION} of cpprb, got "
      f"{version!r}. This t2r_seq reads no other."
    )
  _check_n_step(place, bool(_read_flag(place, archive, "Nstep")), declared)
  if not _read_flag(place, archive, "safe"):
    raise errors.SpecError(
      f"{_IMPORT}: {place}: expected transitions, got the inside of a buffer. The "
      "file was written with safe=False: its layout is cpprb's own, it may change, and "
      f"loading it means unpickling, which could run any code. {_SAFE_WAY}"
    )
  transitions = _read_member(place, archive, "data")
  if not isinstance(transitions, dict):
    raise errors.SpecError(
      f"{_IMPORT}: {place}: data: expected a dict of arrays, got "
      f"{errors.describe(transitions)}."
    )
  return transitions


def _check_n_step(place: str, is_n_step: bool, declared: NStep | None) -> None:
  if is_n_step and declared is None:
    raise errors.SpecError(
      f"{_IMPORT}: {place}: expected n_step=(n, gamma), got None. The transitions "
      "were made n-step ones by their buffer, and the file does not say with which n "
      "and gamma: give those of the buffer."
    )
  if declared is not None and not is_n_step:
    raise errors.SpecError(
      f"{_IMPORT}: {place}: expected {declared}, got one-step transitions. Leave "
      "n_step out; n-step returns are made on reading: "
      f"load_transitions(path).n_step({declared.n}, {declared.gamma})."
    )


def _read_flag(place: str, archive: zipfile.ZipFile, name: str) -> Any:
  try:
    return np.asarray(_read_member(place, archive, name)).item()
  except (KeyError, ValueError) as error:
    if isinstance(error, errors.SpecError):
      raise
    raise errors.SpecError(
      f"{_IMPORT}: {place}: {name}: expected one value, as cpprb writes it, got "
      f"{error}."
    ) from error


def _read_member(place: str, archive: zipfile.ZipFile, name: str) -> Any:
  """Reads an array; if it is one of objects, the arrays that are pickled in it."""
  try:
    with archive.open(f"{name}.npy") as file:
      _, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
      if dtype.hasobject:
        return read_pickled_arrays(file)
    with archive.open(f"{name}.npy") as file:
      return np.lib.format.read_array(file, allow_pickle=False)
  except (OSError, zipfile.BadZipFile, zlib.error):
    raise
  except Exception as error:
    raise errors.SpecError(
      f"{_IMPORT}: {place}: {name}: expected arrays of numbers, got {error}. "
      f"Unpickling could run any code, so it is not done. {_SAFE_WAY}"
    ) from error
