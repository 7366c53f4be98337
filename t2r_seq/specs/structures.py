"""Spec structures: `TensorSpecStruct`, and how any of them is flattened and packed.

A spec structure is a hierarchy of dicts, (named)tuples, lists and `TensorSpecStruct`s
whose leaves are specs, tensors or arrays, or None for an absent optional.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import pprint
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import extended_tensor_spec, serialization, t2r_pb2
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec

SpecStructure = Any

_SEPARATOR = "/"
_NOTHING = object()


class TensorSpecStruct(MutableMapping):
  """Specs, tensors or arrays by path, with attribute access to the hierarchy.

  It is one flat ordered dict of '/' paths. `struct.train` and `struct['train']` are
  live views of the paths below 'train/': changes of a view change the parent, and the
  other way round. `len`, `in`, `keys`, `items` and iteration are flat. `tf.nest`,
  `tf.data` and `tf.function` treat it as a dict and return a TensorSpecStruct.

  >>> from t2r_seq.specs import TensorSpecStruct
  >>> struct = TensorSpecStruct({"train/state": 1, "train/action": 2, "reward": 3})
  >>> struct.train.state, list(struct.train)
  (1, ['state', 'action'])
  >>> struct.train.goal = 4
  >>> struct["train/goal"]
  4

  """

  # Slots, so that __getattr__ never sees these.
  __slots__ = ("__weakref__", "_data", "_prefix")

  def __init__(
    self, items: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **kwargs: Any
  ) -> None:
    """Creates a struct.

    Args:
      items: a mapping, or (path, value) pairs; nested mappings and namedtuples are
        flattened.
      **kwargs: more top-level entries.
    Raises:
      SpecError: an entry is invalid, as in `__setitem__`.
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
    value = self.get(key, _NOTHING)
    if value is _NOTHING:
      raise self._unknown(key)
    return value

  def get(self, key: str, default: Any = None) -> Any:
    """Returns the leaf or the branch of a path, or a default."""
    try:
      return self._data[self._prefix + key]
    except (KeyError, TypeError):
      pass  # A branch, or not a path.
    below = f"{self._prefix}{key}{_SEPARATOR}"
    if any(other.startswith(below) for other in self._data):
      return TensorSpecStruct._view(self._data, below)
    return default

  def __setitem__(self, key: str, value: Any) -> None:
    """Assigns a leaf, or merges a mapping or namedtuple below `key`.

    Raises:
      SpecError: the mapping is empty, or a path is invalid, or a leaf and a branch.
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
    paths = [p for p in self._data if p == path or p.startswith(below)]
    if not paths:
      raise self._unknown(key)
    for path in paths:
      del self._data[path]

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
    """Makes an element of a dataset with this `element_spec` from its tensors.

    A hook of tf.data's iterators, which otherwise walk the structure in slow Python.
    """
    if not all(type(spec) is tf.TensorSpec for spec in self.values()):
      raise AttributeError("Not only tensors: tf.data walks the structure.")
    by_path = dict(zip(sorted(self), tensors, strict=True))
    return TensorSpecStruct._view({path: by_path[path] for path in self}, "")

  @classmethod
  def from_proto(cls, proto: t2r_pb2.TensorSpecStruct) -> TensorSpecStruct:
    """Reads the `t2r.proto` message; SpecError if it is invalid.

    Paths without an order come last, sorted.
    """
    return cls(
      (path, serialization.build(ExtendedTensorSpec, "spec_from_proto", path, fields))
      for path, fields in serialization.fields_by_path(proto).items()
    )

  @classmethod
  def from_serialized_proto(cls, serialized: bytes) -> TensorSpecStruct:
    """Reads the serialized `t2r.proto` message; SpecError if it is invalid."""
    return cls.from_proto(
      serialization.parse_proto(t2r_pb2.TensorSpecStruct, serialized)
    )

  def to_proto(self) -> t2r_pb2.TensorSpecStruct:
    """Returns the `t2r.proto` message of specs by path; absent optionals are left out.

    Raises:
      SpecError: a leaf is not a spec.
    """
    proto = t2r_pb2.TensorSpecStruct()
    for path, spec in self._specs("struct_to_proto"):
      proto.key_value[path].CopyFrom(spec.to_proto())
      proto.key_order.append(path)
    return proto

  @classmethod
  def from_json(cls, text: str) -> TensorSpecStruct:
    """Reads the output of `to_json`; SpecError if it is invalid."""
    values = serialization.load_json("struct_from_json", text)
    if not isinstance(values, Mapping):
      raise serialization.error(
        "struct_from_json", "", "an object of specs by path", repr(values)
      )
    return cls(
      [(path, ExtendedTensorSpec.from_json_dict(v, path)) for path, v in values.items()]
    )

  def to_json(self) -> str:
    """Returns specs by path as JSON, a line per path; otherwise like `to_proto`."""
    lines = [
      f"  {json.dumps(path)}: {spec.to_json()}"
      for path, spec in self._specs("struct_to_json")
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"

  def _specs(self, operation: str) -> list[tuple[str, ExtendedTensorSpec]]:
    assert_only_specs(operation, self)
    return [
      (path, ExtendedTensorSpec.to_spec(spec))
      for path, spec in self.items()
      if spec is not None
    ]

  def pop(self, key: str, *default: Any) -> Any:
    """Removes a leaf and returns it, or a branch and returns it as a new struct.

    Without the path, returns `default`, or raises UnknownPathError.
    """
    if default and self.get(key, _NOTHING) is _NOTHING:
      return default[0]
    value = self[key]
    value = value.copy() if isinstance(value, TensorSpecStruct) else value
    del self[key]
    return value

  def copy(self) -> TensorSpecStruct:
    """Returns a new struct (no view) with the same leaves."""
    return self.__copy__()

  def _unknown(self, key: Any) -> errors.UnknownPathError:
    names = [name for path in self for name in (path, path.split(_SEPARATOR)[0])]
    return errors.UnknownPathError(
      f"TensorSpecStruct: {self._prefix}{key}: no such path."
      f"{errors.nearest(str(key), names)} There is {errors.listing(self)}."
    )

  def _path(self, key: Any) -> str:
    path = f"{self._prefix}{key}"
    if not isinstance(key, str) or _parents(path) is None:
      raise errors.SpecError(
        f"TensorSpecStruct: {path}: expected a path of names joined by single '/', "
        f"got {key!r}."
      )
    return path

  def _entries(self, key: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields (whole path, leaf) for each leaf that an assignment sets."""
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
def _parents(path: str) -> tuple[str, ...] | None:
  """Returns the paths above a path, cached per leaf; None if it is invalid."""
  names = path.split(_SEPARATOR)
  if not all(names):
    return None
  return tuple(_SEPARATOR.join(names[:end]) for end in range(1, len(names)))


def _check_no_clash(path: str, data: Mapping[str, Any]) -> None:
  """Raises SpecError if a leaf is above or below a new path."""
  if path in data:
    return
  for other in _parents(path) or ():
    if other in data:
      raise _clash(path, other)
  below = path + _SEPARATOR
  for other in data:
    if other.startswith(below):
      raise _clash(path, other)


def _clash(path: str, other: str) -> errors.SpecError:
  return errors.SpecError(
    f"TensorSpecStruct: cannot add '{path}': '{other}' exists. A path is either a leaf "
    "or a branch: delete one first."
  )


def _as_mapping(value: Any) -> Any:
  if isinstance(value, tuple) and hasattr(value, "_asdict"):
    return value._asdict()
  return value


def _register_with_keras() -> None:
  """Makes Keras 3 treat a struct as a dict; Keras 2 uses `tf.nest`."""
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


def is_flat_spec_or_tensors_structure(spec_or_tensors: Any) -> bool:
  """Whether this is a mapping of paths to leaves."""
  return isinstance(spec_or_tensors, Mapping) and all(
    value is None or extended_tensor_spec.is_leaf(value)
    for value in spec_or_tensors.values()
  )


def flatten_spec_structure(
  spec_structure: SpecStructure, filter_none: bool = True
) -> TensorSpecStruct:
  """Returns the leaves of a structure as a `TensorSpecStruct` by '/' paths.

  List and tuple elements have their index as a name.

  Args:
    spec_structure: a structure of specs, tensors or arrays.
    filter_none: leaves out the None of absent optionals.
  Raises:
    SpecError: the structure is invalid: see `assert_valid_spec_structure`; or a path
      is both a leaf and a branch.
  """
  assert_valid_spec_structure(spec_structure)
  return TensorSpecStruct(
    (path, leaf)
    for path, leaf in iterate_leaves(spec_structure)
    if leaf is not None or not filter_none
  )


def pack_flat_sequence_to_spec_structure(
  spec_structure: SpecStructure, flat_sequence_with_joined_string_paths: Any
) -> SpecStructure:
  """Packs the leaves of a flat structure into the form of another.

  Args:
    spec_structure: the structure to return; if it is a TensorSpecStruct, the paths of
      the result are sorted.
    flat_sequence_with_joined_string_paths: leaves by path; paths without a spec are
      ignored.
  Returns:
    The form of `spec_structure` with the given leaves; absent optionals are None.
  Raises:
    SpecError: required leaves are missing, the second argument is not flat, or
      `spec_structure` is invalid.
  """
  flat = flat_sequence_with_joined_string_paths
  assert_valid_spec_structure(spec_structure)
  if not is_flat_spec_or_tensors_structure(flat):
    raise errors.SpecError(
      "pack_flat_sequence_to_spec_structure: expected a flat mapping of paths to "
      f"leaves, got {errors.describe(flat)}. Use flatten_spec_structure first."
    )
  missing = missing_leaves(spec_structure, flat)
  if missing:
    raise errors.mismatch_error("pack_flat_sequence_to_spec_structure", missing)
  packed = map_leaves_with_path(lambda path, _: flat.get(path), spec_structure)
  if isinstance(packed, TensorSpecStruct):
    return TensorSpecStruct(sorted(packed.items()))
  return packed


def missing_leaves(
  spec_structure: SpecStructure,
  flat: Mapping[str, Any],
  describe: Callable[[Any], str] = errors.describe,
) -> list[errors.Mismatch]:
  """Lists the required specs that `flat` lacks, with the nearest unused paths."""
  expected = dict(iterate_leaves(spec_structure))
  unused = [path for path in flat if path not in expected]
  return [
    errors.Mismatch(path, describe(spec), "nothing", errors.nearest(path, unused))
    for path, spec in expected.items()
    if spec is not None
    and not getattr(spec, "is_optional", False)
    and flat.get(path) is None
  ]


def assert_valid_spec_structure(spec_structure: SpecStructure) -> None:
  """Checks the leaves of a structure, and that specs of one name agree.

  Specs of one name and dataset read the same record feature: their dtype and the shape
  of one step must agree.

  Raises:
    SpecError: a leaf is not a spec, tensor or array, the root is not a structure, or
      two specs of one name disagree.
  """
  # Compatible is not transitive: (None,) matches (2,) and (3,). A spec is compared with
  # every frame shape of its name.
  by_name: dict[tuple[str, str], list[tuple[str, ExtendedTensorSpec]]] = {}
  for path, leaf in iterate_leaves(spec_structure):
    if leaf is None or not isinstance(leaf, tf.TensorSpec) or leaf.name is None:
      continue
    spec = ExtendedTensorSpec.to_spec(leaf)
    others = by_name.setdefault((spec.dataset_key, spec.name), [])
    for other_path, other in others:
      is_same_shape = spec.frame_shape.is_compatible_with(other.frame_shape)
      if spec.dtype != other.dtype or not is_same_shape:
        raise errors.SpecError(
          f"assert_valid_spec_structure: {path}: expected the shape and dtype of "
          f"{other_path}, {errors.describe(other)}, because both are named "
          f"'{spec.name}', got {errors.describe(spec)}. A name is a record's "
          "feature: it has one dtype and one shape of a step. Cast in a preprocessor."
        )
    if all(spec.frame_shape != other.frame_shape for _, other in others):
      others.append((path, spec))


def iterate_leaves(
  spec_structure: SpecStructure, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields (path, leaf) in the structure's order, None leaves too.

  Raises:
    SpecError: a leaf is not a spec, tensor or array, or the root is not a structure.
  """
  if not isinstance(spec_structure, (Mapping, list, tuple)):
    raise errors.SpecError(
      f"spec structure: {prefix or 'the root'}: expected a dict, (named)tuple, list or "
      f"TensorSpecStruct of specs, tensors or arrays, got "
      f"{errors.describe(spec_structure)}."
    )
  for name, value in _children(spec_structure):
    path = f"{prefix}/{name}" if prefix else name
    if value is None or extended_tensor_spec.is_leaf(value):
      yield path, value
    else:
      yield from iterate_leaves(value, path)


def map_leaves_with_path(
  fn: Callable[[str, Any], Any], spec_structure: SpecStructure, prefix: str = ""
) -> SpecStructure:
  """Builds a structure of the same form from `fn(path, leaf)`, None leaves too."""

  def convert(name: str, value: Any) -> Any:
    path = f"{prefix}/{name}" if prefix else name
    if value is None or extended_tensor_spec.is_leaf(value):
      return fn(path, value)
    return map_leaves_with_path(fn, value, path)

  converted = [
    (name, convert(name, value)) for name, value in _children(spec_structure)
  ]
  if isinstance(spec_structure, TensorSpecStruct):
    return TensorSpecStruct(converted)
  form: Any = type(spec_structure)
  if isinstance(spec_structure, collections.defaultdict):
    return form(spec_structure.default_factory, converted)
  if isinstance(spec_structure, Mapping):
    return form(converted)
  values = [value for _, value in converted]
  if hasattr(spec_structure, "_fields"):
    return form(*values)
  return form(values)


def map_leaves(
  fn: Callable[[Any], Any], spec_structure: SpecStructure
) -> SpecStructure:
  """Builds a structure of the same form from `fn(leaf)`; None stays None."""
  return map_leaves_with_path(
    lambda _, leaf: None if leaf is None else fn(leaf), spec_structure
  )


def _children(spec_structure: SpecStructure) -> list[tuple[str, Any]]:
  if isinstance(spec_structure, Mapping):
    return list(spec_structure.items())
  names = getattr(spec_structure, "_fields", None)
  if names is None:
    names = [str(i) for i in range(len(spec_structure))]
  return list(zip(names, spec_structure, strict=True))


def assert_only_specs(operation: str, spec_structure: SpecStructure) -> None:
  """Raises SpecError if a structure is invalid or has leaves other than specs."""
  assert_valid_spec_structure(spec_structure)
  mismatches = [
    errors.Mismatch(path, "a spec", f"{type(leaf).__name__} {errors.describe(leaf)}")
    for path, leaf in iterate_leaves(spec_structure)
    if leaf is not None and not isinstance(leaf, tf.TensorSpec)
  ]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def signature_key(path: str) -> str:
  """Returns a path as an identifier for signatures: 'state_image' for 'state/image'."""
  key = re.sub(r"\W", "_", path)
  return f"_{key}" if key[0].isdigit() else key


def copy_tensorspec(
  spec_structure: SpecStructure, prefix: str = "", batch_size: int | None = None
) -> SpecStructure:
  """Returns a copy of a structure of specs with prefixed names.

  >>> from t2r_seq import specs
  >>> state = specs.ExtendedTensorSpec((3,), "float32", "state")
  >>> specs.copy_tensorspec({"state": state}, prefix="target")["state"].name
  'target/state'

  Args:
    spec_structure: a structure of specs.
    prefix: put before every name with a '/'; a missing name becomes 'prefix/'.
    batch_size: prepends a batch axis; see `ExtendedTensorSpec.from_spec`.
  Raises:
    SpecError: the structure is invalid, a leaf is not a spec, or `batch_size` is not
      an integer.
  """
  assert_only_specs("copy_tensorspec", spec_structure)
  start = f"{prefix}/" if prefix else ""
  return map_leaves(
    lambda spec: ExtendedTensorSpec.from_spec(
      spec, name=start + (spec.name or ""), batch_size=batch_size
    ),
    spec_structure,
  )


def stored_specs(spec_structure: SpecStructure) -> SpecStructure:
  """Returns the specs of the stored data: see `stored_dtype` of a spec."""
  return map_leaves(
    lambda spec: spec.as_stored() if isinstance(spec, ExtendedTensorSpec) else spec,
    spec_structure,
  )


def filter_required_flat_tensor_spec(
  flat_tensor_spec: SpecStructure,
) -> TensorSpecStruct:
  """Returns the required specs; SpecError if the structure is not flat."""
  if not is_flat_spec_or_tensors_structure(flat_tensor_spec):
    raise errors.SpecError(
      "filter_required_flat_tensor_spec: expected a flat mapping of paths to specs, "
      f"got {errors.describe(flat_tensor_spec)}. Use flatten_spec_structure first."
    )
  return TensorSpecStruct(
    (path, spec)
    for path, spec in flat_tensor_spec.items()
    if not getattr(spec, "is_optional", False)
  )


def filter_spec_structure_by_dataset(
  spec_structure: SpecStructure, dataset_key: str, filter_none: bool = True
) -> TensorSpecStruct:
  """Returns the specs of one dataset, or all for '', flattened."""
  flat = flatten_spec_structure(spec_structure, filter_none)
  return TensorSpecStruct(
    (path, spec)
    for path, spec in flat.items()
    if not dataset_key or getattr(spec, "dataset_key", "") == dataset_key
  )


def add_sequence_length_specs(spec_structure: SpecStructure) -> TensorSpecStruct:
  """Adds an int64 scalar spec '<path>_length' for every sequence spec."""
  flat = flatten_spec_structure(spec_structure)
  for path, spec in list(flat.items()):
    spec = ExtendedTensorSpec.to_spec(spec)
    if spec.is_sequence:
      name = None if spec.name is None else f"{spec.name}_length"
      flat[f"{path}_length"] = ExtendedTensorSpec(
        (), tf.int64, name, dataset_key=spec.dataset_key
      )
  return flat


def replace_dtype(
  tensor_spec_struct: TensorSpecStruct, from_dtype: Any, to_dtype: Any
) -> TensorSpecStruct:
  """Replaces a dtype of flat specs, in place; returns the same struct."""
  for path, spec in list(tensor_spec_struct.items()):
    if spec is not None and spec.dtype == from_dtype:
      tensor_spec_struct[path] = ExtendedTensorSpec.from_spec(spec, dtype=to_dtype)
  return tensor_spec_struct


def cast_float32_to_bfloat16(
  tensor_spec_struct: TensorSpecStruct, output_spec: SpecStructure
) -> TensorSpecStruct:
  """Casts the tensors with a bfloat16 `output_spec`, in place; returns the struct.

  Raises:
    SpecError: a tensor to cast is not float32.
  """
  paths = [
    path
    for path, spec in flatten_spec_structure(output_spec).items()
    if spec.dtype == tf.bfloat16 and tensor_spec_struct.get(path) is not None
  ]
  wrong = [
    errors.Mismatch(path, "float32", errors.describe(tensor_spec_struct[path]))
    for path in paths
    if tensor_spec_struct[path].dtype != tf.float32
  ]
  if wrong:
    raise errors.mismatch_error("cast_float32_to_bfloat16", wrong)
  for path in paths:
    tensor_spec_struct[path] = tf.cast(tensor_spec_struct[path], tf.bfloat16)
  return tensor_spec_struct


def cast_bfloat16_to_float32(tensor_spec_struct: TensorSpecStruct) -> TensorSpecStruct:
  """Casts every bfloat16 tensor to float32, in place; returns the same struct."""
  for path, tensor in list(tensor_spec_struct.items()):
    if tensor is not None and tensor.dtype == tf.bfloat16:
      tensor_spec_struct[path] = tf.cast(tensor, tf.float32)
  return tensor_spec_struct


def tensorspec_from_tensors(tensors: SpecStructure) -> SpecStructure:
  """Describes tensors or arrays by specs; names are '<name or path>/<number>'."""
  assert_valid_spec_structure(tensors)
  numbers = itertools.count()

  def describe(path: str, tensor: Any) -> ExtendedTensorSpec | None:
    if tensor is None:
      return None
    spec = ExtendedTensorSpec.to_spec(tensor)
    name = f"{spec.name or path}/{next(numbers)}"
    return ExtendedTensorSpec.from_spec(spec, name=name, is_extracted=True)

  return map_leaves_with_path(describe, tensors)


def pad_or_clip_tensor_to_spec_shape(
  tensor: tf.Tensor, tensor_spec: ExtendedTensorSpec
) -> tf.Tensor:
  """Pads or clips lists, [batch, n, ...], to `tensor_spec.shape[0]` elements.

  The parser does this for varlen specs. The `varlen_default_value` pads.

  Raises:
    SpecError: the spec is not of variable length, or the tensor's rank or element
      shape differs from the spec's.
  """
  if tensor_spec.varlen_default_value is None:
    raise errors.SpecError(
      f"pad_or_clip_tensor_to_spec_shape: {tensor_spec.name}: expected a spec with a "
      f"varlen_default_value, got {tensor_spec!r}."
    )
  length, element_shape = tensor_spec.shape[0], tensor_spec.shape[1:]
  want = tf.TensorShape([None, None]).concatenate(element_shape)
  if not tensor.shape.is_compatible_with(want):
    mismatch = errors.Mismatch(
      str(tensor_spec.name), f"shape {want}", errors.describe(tensor)
    )
    raise errors.mismatch_error("pad_or_clip_tensor_to_spec_shape", [mismatch])
  clipped = tensor[:, :length]
  shape = tf.shape(clipped)
  missing = tf.concat([shape[:1], [length - shape[1]], shape[2:]], 0)
  default: Any = tensor_spec.varlen_default_value
  # Tensor2Robot's specs have 3.0 as the default of integers, too.
  default = default if tensor.dtype == tf.string else tf.cast(default, tensor.dtype)
  padded = tf.concat([clipped, tf.fill(missing, default)], 1)
  return tf.ensure_shape(padded, tensor.shape[:1].concatenate(tensor_spec.shape))
