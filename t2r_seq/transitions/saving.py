"""`save_transitions`: chains of transitions as the episodes of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import EpisodeStore
from t2r_seq.transitions.metadata import KEY, FrameStack, TransitionsMetadata
from t2r_seq.windows import Cut, NStep
from t2r_seq.windows.n_step import TransitionFields


def check_arrays(
  operation: str,
  arrays: Mapping[str, np.ndarray],
  fields: TransitionFields,
  stacks: Mapping[str, FrameStack] | None = None,
) -> specs.TensorSpecStruct:
  """Checks that arrays are transitions that can be stored.

  Args:
    operation: for the error.
    arrays: by path.
    fields: which one is what.
    stacks: of fields of stacked frames.
  Returns:
    The specs of the store's columns.
  Raises:
    SpecError: dtypes, lengths or values do not fit; all of a kind are named.
  """
  found = [problem for p in fields.paths if (problem := _dtype_problem(p, arrays[p]))]
  if not found:
    found = [*_length_problems(arrays, fields), *_partner_problems(arrays, fields)]
  if not found:
    found = [*_flag_problems(arrays, fields), *_reward_problems(arrays, fields)]
  stacks = stacks or {}
  if not found:
    found = [
      problem
      for path, of in fields.next_of.items()
      if of in stacks
      for problem in _stack_problems(path, arrays[path], of, arrays[of], stacks[of])
    ]
  if found:
    raise errors.mismatch_error(operation, found)
  return specs.TensorSpecStruct(
    (path, _column_spec(newest_frames(arrays[path][:1], stacks.get(path))))
    for path in fields.stored
  )


def find_stacks(
  operation: str,
  stacked: Mapping[str, int],
  arrays: Mapping[str, np.ndarray],
  fields: TransitionFields,
) -> dict[str, FrameStack]:
  """Finds what the user declares to be stacked frames.

  Args:
    operation: for the error.
    stacked: axis of the frames in an observation, by path of a field or of a branch.
    arrays: by path.
    fields: which one is what.
  Returns:
    The stacks by path of a field.
  Raises:
    SpecError: a path names no observation that has a next one, or it has no such axis.
  """
  stacks: dict[str, FrameStack] = {}
  found = []
  observed = list(fields.next_of.values())
  for name, axis in stacked.items():
    paths = [p for p in observed if p == name or p.startswith(f"{name}/")]
    if not paths:
      want = f"one of {errors.listing(observed)}"
      found.append(errors.Mismatch(f"stacked: {name}", want, "no such observation"))
    for path in paths:
      shape = arrays[path].shape[1:]
      if -len(shape) <= axis < len(shape) and shape[axis]:
        stacks[path] = FrameStack(shape[axis], axis % len(shape))
      else:
        want = f"an observation with frames on axis {axis}"
        found.append(errors.Mismatch(path, want, f"the shape {shape}"))
  if found:
    raise errors.mismatch_error(operation, found)
  return stacks


def newest_frames(array: np.ndarray, stack: FrameStack | None) -> np.ndarray:
  """Returns the last frames of stacks [N, ...]; what is not stacked as it is."""
  return array if stack is None else np.take(array, -1, stack.axis + 1)


def _frames(array: np.ndarray, stack: FrameStack, part: slice) -> np.ndarray:
  """Returns some of the frames of each stack, [N, number, ...]."""
  return np.moveaxis(array, stack.axis + 1, 1)[:, part]


def _stack_problems(
  path: str, following: np.ndarray, of: str, now: np.ndarray, stack: FrameStack
) -> Iterator[errors.Mismatch]:
  """Yields the first transition whose next stack is not its own and one frame more."""
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
        f"Is axis {stack.axis} that of the frames, the oldest first? What is no stack "
        "of the last steps is saved as it is without `stacked`.",
      )
      return


def frames_of_stacks(stacks: np.ndarray, axis: int = 0) -> np.ndarray:
  """Returns the frames of an episode's stacks, each once.

  For what comes stacked, such as the observations of Gymnasium's
  `FrameStackObservation`: a store has the frames, and specs with time offsets, or the
  exported policy, make the stacks again.

  Args:
    stacks: [T, ...] of one episode, one stack a step, the oldest frame first.
    axis: of the frames in a stack, without that of the steps.
  Returns:
    [T, ...], the newest frame of each step.
  Raises:
    SpecError: a stack is not the one before it and a frame more, or the first one has
      other frames than repeated ones or zeros before its last.
  """
  arrays = {"stacks": stacks[:-1], "next_stacks": stacks[1:]}
  fields = TransitionFields((), {"next_stacks": "stacks"}, (), "", "", None)
  stack = find_stacks("frames_of_stacks", {"stacks": axis}, arrays, fields)["stacks"]
  found = list(_stack_problems("stacks", stacks[1:], "the step before", stacks, stack))
  first = front_padding({"stacks": stacks}, {"stacks": stack}, np.zeros(1, int))
  if not found and first == "drop":
    want = "a first stack of its newest frame repeated, or of zeros before it"
    found = [errors.Mismatch("stacks", want, "others", "Does the episode begin there?")]
  if found:
    raise errors.mismatch_error("frames_of_stacks", found)
  return newest_frames(stacks, stack)


def _blocks(like: np.ndarray, num: int) -> Iterator[slice]:
  """Yields the rows up to `num` in parts that take little memory."""
  block = max(1, _BLOCK_BYTES // max(1, like[:1].nbytes))
  for start in range(0, num, block):
    yield slice(start, min(start + block, num))


def front_padding(
  arrays: Mapping[str, np.ndarray], stacks: Mapping[str, FrameStack], firsts: np.ndarray
) -> str:
  """Tells what the first stacks of chains show before their own step.

  Args:
    arrays: by path.
    stacks: of the fields that have any.
    firsts: numbers of the chains' first transitions.
  Returns:
    'repeat' or 'zero', if that is all; 'drop' where there are frames of their own.
  """
  kinds = {"repeat", "zero"}
  for path, stack in stacks.items():
    for first in firsts:
      shown = _frames(arrays[path][first : first + 1], stack, slice(None))[0]
      if not same_rows(shown[:-1], np.broadcast_to(shown[-1:], shown[:-1].shape)).all():
        kinds.discard("repeat")
      if not same_rows(shown[:-1], np.zeros_like(shown[:-1])).all():
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


def _length_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  num = len(arrays[fields.done])
  if not num:
    yield errors.Mismatch(fields.done, "at least one transition", "none")
  for path in fields.paths:
    if len(arrays[path]) != num:
      want = f"{num} transitions, as {fields.done} has"
      yield errors.Mismatch(path, want, str(len(arrays[path])))


def _partner_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path, of in fields.next_of.items():
    got, want = _kind(arrays[path]), _kind(arrays[of])
    if got != want:
      want_text = f"rows of {want[0]} {want[1]}, as {of} has"
      yield errors.Mismatch(path, want_text, f"rows of {got[0]} {got[1]}")


def _kind(array: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
  return array.shape[1:], array.dtype.newbyteorder("=")


def _flag_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path in fields.flags:
    array, want = arrays[path], "one 0 or 1 for each transition"
    if array.size != len(array) or array.dtype.kind not in "biuf":
      yield errors.Mismatch(path, want, errors.describe(array))
    elif (others := array[(array != 0) & (array != 1)]).size:
      yield errors.Mismatch(path, want, f"a {others.flat[0]!r}")


def _reward_problems(
  arrays: Mapping[str, np.ndarray], fields: TransitionFields
) -> Iterator[errors.Mismatch]:
  for path in fields.rewards:
    dtype = _column_spec(arrays[path]).dtype
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
      got = errors.describe(arrays[path])
      yield errors.Mismatch(path, "a reward of real numbers", got)


_BLOCK_BYTES = 1 << 22


def chain_ends(
  transitions: Mapping[str, np.ndarray], fields: TransitionFields
) -> np.ndarray:
  """Finds the chains: runs in which each next observation is the one that follows.

  A chain ends where `done` or `truncated` is set, and where the next observation is
  another than the one of the following transition, in any bit of any path.

  Args:
    transitions: arrays [N, ...] by path, N >= 1.
    fields: which one is what.
  Returns:
    The transition after each chain's last one, int64 [chains]; the last is N.
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
  """Compares two arrays row by row, bit for bit: a NaN is the same as itself.

  Args:
    left: [N, ...] of numbers or bytes objects.
    right: of the same shape and dtype; their byte orders may differ.
  Returns:
    bool [N].
  """
  if not left.size:
    return np.ones(len(left), bool)
  if left.dtype == object:
    return (left == right).reshape(len(left), -1).all(1)
  return (_words(left) == _words(right)).all(1)


def _words(array: np.ndarray) -> np.ndarray:
  """Views rows as unsigned integers, as wide as the rows allow."""
  native = array.astype(array.dtype.newbyteorder("="), copy=False)
  rows = np.ascontiguousarray(native).reshape(len(array), -1)
  row_bytes = rows.shape[1] * rows.dtype.itemsize
  width = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
  return rows.view(f"u{width}")


_BLOCK_BYTES_SAVING = 1 << 23
_OPERATION = "save_transitions"


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

  The transitions are cut into chains. A chain goes on while a transition is no
  terminal and its next observation is the observation of the following one, bit for
  bit. A chain of T transitions becomes an episode of T + 1 rows: the last row has the
  last next observation, and zeros in the other fields. So there is no column of next
  observations, and still every one comes back as it was given: the real one at a
  truncation, too. Arrays may be memory maps of any size; they are read in blocks.

  The store is whole or, after a crash, refused by `load_transitions`.

  Args:
    path: of the folder; it must not be there, or be empty.
    transitions: arrays [N, ...] in one structure, in the order of time: obs, act, rew,
      next_obs, done and any others. A field `next_x` is the next `x`; both may be
      branches, as obs/image and obs/state. Byte strings come as arrays of objects.
    rew: path of the reward, or of a branch of several.
    done: path of the flag of terminals, [N] or [N, 1], 0 or 1 of any dtype.
    truncated: path of a like flag of steps after which an episode was cut off; it is
      kept, and ends a chain. There may be none.
    n_step: (n, gamma), where the rewards are n-step returns and the next observations
      n steps away already; what is declared here cannot be done again later.
    metadata: JSON values of the user's own, for the store.
    stacked: observations that are stacks of the last frames, the oldest first, and the
      axis of the frames without the batch's: {'obs': 0} for Gymnasium's
      `FrameStackObservation`, {'obs': -1} for cpprb's `stack_compress`. Each frame is
      stored once, and stacks are made again on reading, bit for bit. Where a chain does
      not begin with frames that repeat the first one, or zeros, those that it begins
      with are stored in rows before it.
  Returns:
    The number of chains.
  Raises:
    SpecError: fields are missing, or their lengths, dtypes, values or stacks do not
      fit; all are named, and nothing is written.
    StoreError: there is something at the path already.
    OSError: the folder cannot be written, or the disk is full.
  """
  declared = NStep.of(n_step)
  arrays = _to_arrays(transitions)
  fields = TransitionFields.from_paths(_OPERATION, arrays, rew, done, truncated)
  stacks = find_stacks(_OPERATION, stacked or {}, arrays, fields)
  if stacks and declared is not None:
    raise errors.SpecError(
      f"{_OPERATION}: stacked: expected one-step transitions, got {declared}. Their "
      "stacks are several frames apart: save one-step ones, or leave `stacked` out."
    )
  spec = check_arrays(_OPERATION, arrays, fields, stacks)
  num = len(arrays[fields.done])
  if KEY in (metadata or {}):
    raise errors.SpecError(
      f"{_OPERATION}: metadata: expected keys other than '{KEY}', got it. It is where "
      "the store says what its transitions are."
    )
  ends = chain_ends(arrays, fields)
  starts = np.concatenate([[0], ends[:-1]])
  padding = front_padding(arrays, stacks, starts) if stacks else "drop"
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
  """Returns the frames that the first stacks of a chain show, and else nothing."""
  rows = {}
  for path in about.fields.stored:
    stack, first = about.stacks.get(path), arrays[path][start : start + 1]
    frame = newest_frames(first, stack)
    rows[path] = np.full(
      (about.num_before, *frame.shape[1:]), _nothing(frame.dtype), frame.dtype
    )
    if stack is not None and stack.num_frames > 1:
      rows[path][1 - stack.num_frames :] = _frames(first, stack, slice(-1))[0]
  return rows


def _chain_rows(
  arrays: Mapping[str, np.ndarray], about: TransitionsMetadata, start: int, end: int
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the rows of one chain in blocks; the last one has the row of its end."""
  fields = about.fields

  def take(path: str, first: int, last: int, of: str | None = None) -> np.ndarray:
    return newest_frames(arrays[path][first:last], about.stacks.get(of or path))

  row_bytes = max(1, sum(arrays[path][:1].nbytes for path in fields.stored))
  block = max(1, _BLOCK_BYTES_SAVING // row_bytes)
  last_block = start + (end - start - 1) // block * block
  for first in range(start, last_block, block):
    yield {path: take(path, first, first + block) for path in fields.stored}
  finals = {of: take(path, end - 1, end, of) for path, of in fields.next_of.items()}
  rows = {}
  for path in fields.stored:
    values = take(path, last_block, end)
    final = finals.get(path)
    if final is None:
      final = np.full((1, *values.shape[1:]), _nothing(values.dtype), values.dtype)
    rows[path] = np.concatenate([values, final])
  yield rows


def _nothing(dtype: np.dtype) -> Any:
  return b"" if dtype.hasobject else 0
