"""Reads cpprb's files of transitions, without unpickling what is pickled in them.

numpy writes an array of objects as a pickle, which is a program: unpickling one runs
whatever it calls. Here the few operations that numpy's own arrays, dicts and plain
values are made of are followed by hand. They can call nothing; any other operation, and
any name but those of numpy's arrays, is an error that says what it was.
"""

from __future__ import annotations

import dataclasses
import os
import pickletools
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np

from t2r_seq import errors
from t2r_seq.transitions.saving import save_transitions
from t2r_seq.windows import NStep

# An array is written as three names of numpy: what it is, how it is made, its dtype.
_MAKE_ARRAY = {
  ("numpy._core.multiarray", "_reconstruct"),
  ("numpy.core.multiarray", "_reconstruct"),
}
_ARRAY, _DTYPE = ("numpy", "ndarray"), ("numpy", "dtype")
_DTYPES = re.compile(r"[biufc]\d{1,2}|O8?")
_BYTE_ORDERS = ("<", ">", "|", "=")


class _Refused(ValueError):
  """What is no data, as text."""


@dataclasses.dataclass
class _Name:
  """A name that a pickle would import."""

  module: str
  name: str


@dataclasses.dataclass
class _Dtype:
  """A dtype in the making."""

  dtype: np.dtype


@dataclasses.dataclass
class _Array:
  """An array in the making; its value is set once its state has come."""

  value: np.ndarray | None = None


class _Mark:
  """Where on the stack a tuple or the items of a dict begin."""


def read_pickled_arrays(file: IO[bytes]) -> Any:
  """Reads dicts, lists, tuples, arrays and plain values from a pickle, running none.

  Args:
    file: open at the pickle, of protocol 3 to 5.
  Returns:
    The value; arrays are read-only.
  Raises:
    ValueError: there is something else in it; the message says what.
  """
  reader = _Reader()
  try:
    for opcode, argument, _ in pickletools.genops(file):
      operation = _OPERATIONS.get(opcode.name)
      if operation is None:
        raise _Refused(f"the operation {opcode.name}")
      operation(reader, argument)
    return _finished(reader.stack.pop())
  except _Refused:
    raise
  except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
    raise _Refused(f"damaged bytes ({error})") from error


class _Reader:
  """The stack and the memo of a pickle."""

  def __init__(self) -> None:
    self.stack: list[Any] = []
    self.memo: dict[int, Any] = {}

  def pop_to_mark(self) -> list[Any]:
    place = max(i for i, item in enumerate(self.stack) if isinstance(item, _Mark))
    items = self.stack[place + 1 :]
    del self.stack[place:]
    return items


def _push(reader: _Reader, value: Any) -> None:
  reader.stack.append(value)


def _pop_name(reader: _Reader, argument: Any) -> None:
  name, module = reader.stack.pop(), reader.stack.pop()
  _push_name(reader, f"{module} {name}")


def _push_name(reader: _Reader, argument: str) -> None:
  module, _, name = argument.partition(" ")
  if (module, name) not in (*_MAKE_ARRAY, _ARRAY, _DTYPE):
    raise _Refused(f"the name {module}.{name}, which is code")
  _push(reader, _Name(module, name))


def _tuple_of(count: int) -> Callable[[_Reader, Any], None]:
  def make(reader: _Reader, argument: Any) -> None:
    items = tuple(reader.stack[len(reader.stack) - count :])
    del reader.stack[len(reader.stack) - count :]
    reader.stack.append(items)

  return make


def _set_items(reader: _Reader, argument: Any) -> None:
  items = reader.pop_to_mark()
  reader.stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _set_item(reader: _Reader, argument: Any) -> None:
  value, key = reader.stack.pop(), reader.stack.pop()
  reader.stack[-1].update({key: value})


def _append(reader: _Reader, argument: Any) -> None:
  value = reader.stack.pop()
  reader.stack[-1].append(value)


def _extend(reader: _Reader, argument: Any) -> None:
  items = reader.pop_to_mark()
  reader.stack[-1].extend(items)


def _begin_object(reader: _Reader, argument: Any) -> None:
  """Follows a call: only an empty array or a dtype can come of it."""
  arguments, name = reader.stack.pop(), reader.stack.pop()
  called = (name.module, name.name)
  if called in _MAKE_ARRAY:
    _push(reader, _Array())
  elif called == _DTYPE and _DTYPES.fullmatch(arguments[0]):
    _push(reader, _Dtype(np.dtype(arguments[0])))
  else:
    raise _Refused(f"a call of {'.'.join(called)} with {arguments!r:.60}")


def _finish_object(reader: _Reader, argument: Any) -> None:
  state, made = reader.stack.pop(), reader.stack[-1]
  if isinstance(made, _Dtype):
    if state[1] not in _BYTE_ORDERS:
      raise _Refused(f"the byte order {state[1]!r:.60}")
    made.dtype = made.dtype.newbyteorder(state[1])
    return
  _, shape, of, is_fortran, content = state
  dtype = of.dtype
  if dtype.hasobject:
    if shape != () or len(content) != 1:
      raise _Refused("an array of several objects")
    made.value = content[0]
    return
  flat = np.frombuffer(content, dtype)
  made.value = flat.reshape(shape, order="F" if is_fortran else "C")


def _finished(value: Any) -> Any:
  """Puts the arrays in the place of what they were made of."""
  if isinstance(value, _Array):
    return _finished(value.value)
  if isinstance(value, dict):
    return {key: _finished(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return type(value)(map(_finished, value))
  if isinstance(value, (_Name, _Dtype, _Mark)):
    raise _Refused("no data")
  return value


def _ignore(reader: _Reader, argument: Any) -> None:
  pass


_PLAIN = (
  *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
  *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
  *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
)
_OPERATIONS: dict[str, Callable[[_Reader, Any], None]] = {
  **dict.fromkeys(_PLAIN, _push),
  **dict.fromkeys(("PROTO", "FRAME", "STOP"), _ignore),
  "NONE": lambda reader, _: _push(reader, None),
  "NEWTRUE": lambda reader, _: _push(reader, True),
  "NEWFALSE": lambda reader, _: _push(reader, False),
  "EMPTY_DICT": lambda reader, _: _push(reader, {}),
  "EMPTY_LIST": lambda reader, _: _push(reader, []),
  "EMPTY_TUPLE": lambda reader, _: _push(reader, ()),
  "MARK": lambda reader, _: _push(reader, _Mark()),
  "TUPLE": lambda reader, _: _push(reader, tuple(reader.pop_to_mark())),
  "TUPLE1": _tuple_of(1),
  "TUPLE2": _tuple_of(2),
  "TUPLE3": _tuple_of(3),
  "SETITEMS": _set_items,
  "SETITEM": _set_item,
  "APPEND": _append,
  "APPENDS": _extend,
  "GLOBAL": _push_name,
  "STACK_GLOBAL": _pop_name,
  "REDUCE": _begin_object,
  "BUILD": _finish_object,
  "MEMOIZE": lambda reader, _: reader.memo.update({len(reader.memo): reader.stack[-1]}),
  "BINPUT": lambda reader, number: reader.memo.update({number: reader.stack[-1]}),
  "LONG_BINPUT": lambda reader, number: reader.memo.update({number: reader.stack[-1]}),
  "BINGET": lambda reader, number: _push(reader, reader.memo[number]),
  "LONG_BINGET": lambda reader, number: _push(reader, reader.memo[number]),
}


_OPERATION = "import_cpprb"
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
) -> int:
  """Saves the transitions of a file of cpprb as `save_transitions` does.

  cpprb is not needed. Its `buffer.save_transitions(file)` pickles the arrays: they are
  read as data, and a file in which there is anything but arrays is refused, so that
  nothing in a file is ever run. A file of `numpy.savez(file,
  **buffer.get_all_transitions())` is read, too.

  Args:
    npz_path: of cpprb's file, written with safe=True, its default.
    store_path: of the store; it must not be there, or be empty.
    rew: name of the reward in the buffer.
    done: name of the flag of terminals.
    truncated: name of the flag of truncations; there may be none.
    n_step: (n, gamma) of the buffer if it had `Nstep`: the file says only that it had.
    metadata: JSON values of the user's own, for the store.
  Returns:
    The number of chains.
  Raises:
    SpecError: no file of cpprb, a newer one, one of safe=False or with other things
      than arrays; n-step transitions and no `n_step`, or the other way round; or the
      transitions cannot be saved.
    StoreError: there is something at `store_path` already.
    OSError: the file cannot be read, or the folder not be written.
  """
  place = os.fspath(npz_path)
  declared = NStep.of(n_step)
  try:
    with zipfile.ZipFile(place) as archive:
      transitions = _read(place, archive, declared)
  except (zipfile.BadZipFile, zlib.error) as error:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected a .npz file of cpprb, got {error}."
    ) from error
  return save_transitions(
    store_path, transitions, rew, done, truncated, declared, metadata
  )


def _read(place: str, archive: zipfile.ZipFile, declared: NStep | None) -> Any:
  names = [name.removesuffix(".npy") for name in archive.namelist()]
  if "data" not in names or "version" not in names:
    return {name: _read_member(place, archive, name) for name in names}
  version = _read_flag(place, archive, "version")
  if version != _VERSION:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected format version {_VERSION} of cpprb, got "
      f"{version!r}. This t2r_seq knows no other."
    )
  _check_n_step(place, bool(_read_flag(place, archive, "Nstep")), declared)
  if not _read_flag(place, archive, "safe"):
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected transitions, got the inside of a buffer. The "
      "file was written with safe=False: its layout is cpprb's own, it may change, and "
      f"loading it means unpickling, which could run any code. {_SAFE_WAY}"
    )
  transitions = _read_member(place, archive, "data")
  if not isinstance(transitions, dict):
    raise errors.SpecError(
      f"{_OPERATION}: {place}: data: expected a dict of arrays, got "
      f"{errors.describe(transitions)}."
    )
  return transitions


def _check_n_step(place: str, is_n_step: bool, declared: NStep | None) -> None:
  if is_n_step and declared is None:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected n_step=(n, gamma), got None. The transitions "
      "were made n-step ones by their buffer, and the file does not say with which n "
      "and gamma: give those of the buffer."
    )
  if declared is not None and not is_n_step:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected {declared}, got one-step transitions. Leave "
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
      f"{_OPERATION}: {place}: {name}: expected one value, as cpprb writes it, got "
      f"{error}."
    ) from error


def _read_member(place: str, archive: zipfile.ZipFile, name: str) -> Any:
  """Reads an array; of an array of objects the arrays that are pickled in it."""
  try:
    with archive.open(f"{name}.npy") as file:
      _, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
      if dtype.hasobject:
        return read_pickled_arrays(file)
    with archive.open(f"{name}.npy") as file:
      return np.lib.format.read_array(file, allow_pickle=False)
  except (KeyError, ValueError) as error:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: {name}: expected arrays of numbers, got {error}. "
      f"Unpickling could run any code, so it is not done. {_SAFE_WAY}"
    ) from error
