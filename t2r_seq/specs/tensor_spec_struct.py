"""`TensorSpecStruct`: one flat ordered dict, seen as a hierarchy."""

from __future__ import annotations

import functools
import pprint
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import serializable

_SEPARATOR = "/"


class TensorSpecStruct(serializable.Serializable, MutableMapping):
  """Specs, tensors or arrays by path, with attribute access to the hierarchy.

  There is one flat ordered dict of '/' paths. `struct.train` and `struct['train']`
  are live views of the paths below 'train/': what is added or deleted through a view
  changes the parent, and the other way round. `len`, `in`, `keys`, `items` and
  iteration are flat. It is a mutable mapping, so `tf.nest`, `tf.data` and
  `tf.function` treat it as a dict and give it back as a TensorSpecStruct. After
  Tensor2Robot's class of that name.
  """

  # Class attributes, so that __setattr__ and __getattr__ never see these two.
  __slots__ = ("__weakref__", "_data", "_prefix")
  _serializer = "struct"

  def __init__(
    self, items: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **kwargs: Any
  ) -> None:
    """Creates a struct.

    Args:
      items: a mapping, or (path, value) pairs; nested mappings and namedtuples are
        flattened.
      **kwargs: further top-level entries.
    Raises:
      SpecError: an entry cannot be assigned; see `__setitem__`.
    """
    object.__setattr__(self, "_data", {})
    object.__setattr__(self, "_prefix", "")
    self.update(items, **kwargs)

  @classmethod
  def _view(cls, data: dict[str, Any], prefix: str) -> TensorSpecStruct:
    view = cls()
    object.__setattr__(view, "_data", data)
    object.__setattr__(view, "_prefix", prefix)
    return view

  def to_dict(self) -> dict[str, Any]:
    """Returns a flat dict copy by path; leaves are shared."""
    return dict(self.items())

  def __getitem__(self, key: str) -> Any:
    try:
      return self._data[self._prefix + key]
    except (KeyError, TypeError):
      pass  # A branch, or no path.
    below = f"{self._prefix}{key}{_SEPARATOR}"
    if any(other.startswith(below) for other in self._data):
      return TensorSpecStruct._view(self._data, below)
    raise self._unknown(key)

  def __setitem__(self, key: str, value: Any) -> None:
    """Assigns a leaf, or merges a mapping or namedtuple below `key`.

    Raises:
      SpecError: an empty structure, or a path that would be both a leaf and a branch.
    """
    if not isinstance(value, (tuple, Mapping)):
      path = self._path(key)
      _check_no_clash(path, self._data)
      self._data[path] = value
      return
    entries = [*self._entries(key, value)]
    # All or nothing, and in place, because the views share the dict.
    changed = dict(self._data)
    for path, leaf in entries:
      _check_no_clash(path, changed)
      changed[path] = leaf
    self._data.update(changed)

  def __delitem__(self, key: str) -> None:
    path = f"{self._prefix}{key}"
    below = path + _SEPARATOR
    doomed = [p for p in self._data if p == path or p.startswith(below)]
    if not doomed:
      raise self._unknown(key)
    for other in doomed:
      del self._data[other]

  def __iter__(self) -> Iterator[str]:
    start = len(self._prefix)
    if not start:
      return iter([*self._data])
    return iter([path[start:] for path in self._data if path.startswith(self._prefix)])

  def __len__(self) -> int:
    if not self._prefix:
      return len(self._data)
    return sum(1 for path in self._data if path.startswith(self._prefix))

  def __contains__(self, key: object) -> bool:
    """Whether `key` is the whole path of a leaf; `hasattr` also sees branches."""
    return isinstance(key, str) and self._prefix + key in self._data

  def __getattr__(self, name: str) -> Any:
    if name.startswith("_"):
      raise AttributeError(name)
    return self[name]

  def __setattr__(self, name: str, value: Any) -> None:
    if name.startswith("_") or hasattr(type(self), name):
      raise errors.SpecError(
        f"TensorSpecStruct: {name}: cannot be set as an attribute, the class has one "
        f"of that name or it starts with '_'. Use struct['{name}'] = ..."
      )
    self[name] = value

  def __delattr__(self, name: str) -> None:
    del self[name]

  def __dir__(self) -> list[str]:
    branches = {path.split(_SEPARATOR)[0] for path in self}
    return [*super().__dir__(), *sorted(branches)]

  def __repr__(self) -> str:
    return f"TensorSpecStruct({pprint.pformat(self.to_dict(), sort_dicts=False)})"

  def __reduce__(self) -> tuple[Any, ...]:
    return TensorSpecStruct, (list(self.items()),)

  def __copy__(self) -> TensorSpecStruct:
    return TensorSpecStruct(self.items())

  def _from_compatible_tensor_list(self, tensors: list[Any]) -> TensorSpecStruct:
    """Makes an element of a dataset, whose `element_spec` this is, of its tensors.

    Iterators of tf.data ask for this before they walk a structure in Python: a batch of
    four tensors takes 100 us in place of 167 (140 as a plain dict).
    """
    if not all(type(spec) is tf.TensorSpec for spec in self.values()):
      raise AttributeError("No tensors alone: tf.data is to walk the structure.")
    by_path = dict(zip(sorted(self), tensors, strict=True))
    return TensorSpecStruct._view({path: by_path[path] for path in self}, "")

  def pop(self, key: str, *default: Any) -> Any:
    """Removes a leaf and returns it, or a branch and returns it as a struct."""
    value = self.get(key, *default) if default else self[key]
    if default and value is default[0]:
      return value
    value = value.copy() if isinstance(value, TensorSpecStruct) else value
    del self[key]
    return value

  def copy(self) -> TensorSpecStruct:
    """Returns a struct of its own (no view) with the same leaves."""
    return self.__copy__()

  def _unknown(self, key: Any) -> errors.UnknownPathError:
    names = [name for path in self for name in (path, path.split(_SEPARATOR)[0])]
    return errors.UnknownPathError(
      f"TensorSpecStruct: {self._prefix}{key}: no such path."
      f"{errors.nearest(str(key), names)} There is {errors.listing(self)}."
    )

  def _path(self, key: Any) -> str:
    path = f"{self._prefix}{key}"
    if not isinstance(key, str) or _branches(path) is None:
      raise errors.SpecError(
        f"TensorSpecStruct: {path}: expected a path of names joined by single '/', "
        f"got {key!r}."
      )
    return path

  def _entries(self, key: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the whole path and the leaf of all that an assignment sets."""
    path = self._path(key)
    value = _as_mapping(value)
    if not isinstance(value, Mapping):
      yield path, value
      return
    if not value:
      raise errors.SpecError(
        f"TensorSpecStruct: {path}: expected entries, got an empty "
        f"{type(value).__name__}. Fill it first and then assign it, or assign its "
        f"entries as struct['{key}/...'] = spec."
      )
    for sub_key, sub_value in list(value.items()):
      yield from self._entries(f"{key}{_SEPARATOR}{sub_key}", sub_value)


@functools.lru_cache(maxsize=2**12)
def _branches(path: str) -> tuple[str, ...] | None:
  """Returns the branches above a path; None where it is no path."""
  # Asked for every leaf of every batch that a dataset gives.
  names = path.split(_SEPARATOR)
  if not all(names):
    return None
  return tuple(_SEPARATOR.join(names[:end]) for end in range(1, len(names)))


def _check_no_clash(path: str, data: Mapping[str, Any]) -> None:
  if path in data:
    return
  for other in _branches(path) or ():
    if other in data:
      raise _clash(path, other)
  below = path + _SEPARATOR
  for other in data:
    if other.startswith(below):
      raise _clash(path, other)


def _clash(path: str, other: str) -> errors.SpecError:
  return errors.SpecError(
    f"TensorSpecStruct: {path}: expected a new path, got '{other}' in its way. "
    "A path is either a leaf or a branch: delete one first."
  )


def _as_mapping(value: Any) -> Any:
  if isinstance(value, tuple) and hasattr(value, "_asdict"):
    return value._asdict()
  return value


def _register_with_keras() -> None:
  """Lets Keras 3 layers take a struct as they take a dict; Keras 2 asks `tf.nest`."""
  try:
    import optree
  except ImportError:  # It comes with Keras 3.
    return

  def flatten(struct: Any) -> tuple[Any, Any, Any]:
    paths = tuple(sorted(struct))
    return [struct[path] for path in paths], paths, paths

  def unflatten(paths: Any, values: Any) -> Any:
    return TensorSpecStruct(zip(paths, values, strict=True))

  optree.register_pytree_node(TensorSpecStruct, flatten, unflatten, namespace="keras")


_register_with_keras()
