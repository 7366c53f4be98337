"""Records and files as they should be, and everything that can be wrong with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from independent_reading import KINDS, PROTOS

from t2r_seq import specs
from t2r_seq.records.write import ExampleEncoder
from t2r_seq.specs.packing import encode_image

_Spec = specs.ExtendedTensorSpec

EXAMPLE = {
  "jpeg": _Spec((8, 8, 3), tf.uint8, "jpeg", data_format="jpeg"),
  "png": _Spec((2, 4, 4, 1), tf.uint8, "png", data_format="png"),
  "deep": _Spec((4, 4, 1), tf.uint16, "deep", data_format="png", is_optional=True),
  "half": _Spec((2,), tf.bfloat16, "half"),
  "float": _Spec((2, 2), tf.float32, "float"),
  "double": _Spec((2,), tf.float64, "double"),
  "raw": _Spec((2, 3), tf.int16, "raw", data_format="raw", is_optional=True),
  "byte": _Spec((3,), tf.uint8, "byte"),
  "int": _Spec((), tf.int32, "int"),
  "long": _Spec((2,), tf.uint64, "long"),
  "flag": _Spec((), tf.bool, "flag"),
  "words": _Spec((2,), tf.string, "words"),
  "numbers": _Spec((4,), tf.int64, "numbers", varlen_default_value=3.0),
  "force": _Spec((2,), tf.float32, "force", is_optional=True),
  "rating": _Spec((), tf.int8, "rating", is_optional=True),
}
EPISODE = {
  "jpeg": _Spec((8, 8, 3), tf.uint8, "jpeg", is_sequence=True, data_format="jpeg"),
  "png": _Spec(
    (4, 4, 3), tf.uint8, "png", is_sequence=True, data_format="png", is_optional=True
  ),
  "half": _Spec((), tf.bfloat16, "half", is_sequence=True),
  "raw": _Spec((2, 3), tf.float32, "raw", is_sequence=True, data_format="raw"),
  "byte": _Spec((3,), tf.uint8, "byte", is_sequence=True),
  "done": _Spec((), tf.bool, "done", is_sequence=True),
  "words": _Spec((2,), tf.string, "words", is_sequence=True),
  "force": _Spec((2,), tf.float32, "force", is_sequence=True, is_optional=True),
  "exact": _Spec(
    (2,), tf.float64, "exact", is_sequence=True, varlen_default_value=-1.0
  ),
  "task": _Spec((), tf.string, "task"),
  "goal": _Spec((3,), tf.float32, "goal"),
  "rating": _Spec((), tf.int64, "rating", is_optional=True),
}
STRUCTURES = {"example": EXAMPLE, "episode": EPISODE}
_ENCODERS = {name: ExampleEncoder(spec) for name, spec in STRUCTURES.items()}


def make_record(name: str, rng: random.Random, with_all: bool = False) -> bytes:
  """Writes a good record of a structure; optional features are in some, or in it."""
  numbers = np.random.default_rng(rng.randrange(1 << 30))
  steps = rng.choice([1, 2, 3, 3, 5])
  values = {}
  for path, spec in STRUCTURES[name].items():
    if with_all or not (spec.is_optional and rng.random() < 0.3):
      shape = [steps] * spec.is_sequence + spec.shape.as_list()
      values[path] = _make_values(spec, shape, numbers)
  return _ENCODERS[name].encode(values)


def _make_values(spec: Any, shape: list[int], rng: np.random.Generator) -> np.ndarray:
  if spec.varlen_default_value is not None:
    shape = [*shape[:-1], int(rng.integers(0, 6))]
  dtype = spec.dtype.as_numpy_dtype
  if spec.dtype == tf.string:
    words = np.empty(shape, object)
    for place in np.ndindex(*shape):
      words[place] = rng.bytes(int(rng.integers(0, 5)))
    return words
  if spec.dtype.is_bool:
    return rng.integers(0, 2, shape).astype(bool)
  if spec.dtype.is_integer:
    return rng.integers(spec.dtype.min, spec.dtype.max, shape, dtype, endpoint=True)
  return rng.normal(size=shape).astype(dtype)


def mutate_record(
  data: bytes, name: str, rng: random.Random
) -> tuple[str, list[bytes]]:
  """Does one to three things to a record.

  Returns:
    What was done, and the record before and after each of the things.
  """
  done, stages = [], [data]
  for _ in range(rng.choice([1, 1, 1, 2, 3])):
    kind = rng.choice(list(BYTES if rng.random() < 0.4 else FEATURES))
    done.append(kind)
    if kind in BYTES:
      data = bytes(BYTES[kind](bytearray(data), rng))
      stages.append(data)
      continue
    proto = PROTOS["SequenceExample" if name == "episode" else "Example"]()
    try:
      proto.ParseFromString(data)
    except Exception:
      break
    entries = (
      [proto.context, proto.feature_lists] if name == "episode" else [proto.features]
    )
    if name == "episode":
      maps = [proto.context.feature, proto.feature_lists.feature_list]
    else:
      maps = [entries[0].feature]
    chosen = rng.choice([each for each in maps if each] or maps)
    if chosen:
      FEATURES[kind](chosen, rng.randrange(len(chosen)), rng)
    data = proto.SerializeToString()
    stages.append(data)
  return "+".join(done), stages


def _flip(data: bytearray, rng: random.Random) -> bytearray:
  if data:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  return data


def _insert(data: bytearray, rng: random.Random) -> bytearray:
  place = rng.randint(0, len(data))
  data[place:place] = rng.randbytes(rng.randrange(1, 9))
  return data


def _delete(data: bytearray, rng: random.Random) -> bytearray:
  place = rng.randint(0, len(data))
  del data[place : place + rng.randrange(1, 9)]
  return data


def _zeros(data: bytearray, rng: random.Random) -> bytearray:
  place = rng.randint(0, len(data))
  data[place : place + 20] = bytes(len(data[place : place + 20]))
  return data


def _huge(data: bytearray, rng: random.Random) -> bytearray:
  """A varint of up to ten bytes, where a length may be."""
  place = rng.randint(0, len(data))
  data[place : place + 1] = b"\xff" * rng.randrange(1, 11) + b"\x01"
  return data


def _unknown_field(data: bytearray, rng: random.Random) -> bytearray:
  tag, value = rng.choice(
    [(0x78, b"\x05"), (0x7A, b"\x02hi"), (0x7D, b"four"), (0x79, b"eightbit")]
  )
  return data + bytes([tag]) + value


BYTES: dict[str, Callable[[bytearray, random.Random], bytearray]] = {
  "flip": _flip,
  "insert": _insert,
  "delete": _delete,
  "zeros": _zeros,
  "huge varint": _huge,
  "unknown field": _unknown_field,
  "cut": lambda data, rng: data[: rng.randint(0, len(data))],
  "twice": lambda data, rng: data + data,
  "garbage after": lambda data, rng: data + rng.randbytes(rng.randrange(1, 40)),
  "garbage": lambda data, rng: bytearray(rng.randbytes(rng.randrange(1, 200))),
  "empty": lambda data, rng: bytearray(),
}


def _steps_of(entry: Any) -> Any:
  """The steps of a sequence, a list; of a context feature, itself."""
  is_list = entry.DESCRIPTOR.name == "ListEntry"
  return entry.value.feature if is_list else [entry.value]


def _a_step(entries: Any, i: int, rng: random.Random) -> Any:
  steps = _steps_of(entries[i])
  return rng.choice(steps) if len(steps) else tf.train.Feature()


def _values(feature: Any) -> Any:
  kind = feature.WhichOneof("kind")
  return getattr(feature, kind).value if kind else []


def _duplicate(entries: Any, i: int, rng: random.Random) -> None:
  """One name twice, with other values."""
  entries.add().CopyFrom(entries[i])
  entries[-1].value.CopyFrom(rng.choice(entries).value)


def _remove(entries: Any, i: int, rng: random.Random) -> None:
  del entries[i]


def _rename(entries: Any, i: int, rng: random.Random) -> None:
  name = entries[i].key
  entries[i].key = rng.choice([name + b"s", b"", b"\xff" + name, entries[0].key])


def _swap(entries: Any, i: int, rng: random.Random) -> None:
  entries[i].key, entries[0].key = entries[0].key, entries[i].key


def _other_kind(entries: Any, i: int, rng: random.Random) -> None:
  feature = _a_step(entries, i, rng)
  values = {"int64_list": [1, 2], "float_list": [1.5], "bytes_list": [b"x"]}
  kind = rng.choice(list(KINDS))
  getattr(feature, kind).value[:] = values[kind] * rng.randrange(3)


def _no_kind(entries: Any, i: int, rng: random.Random) -> None:
  _a_step(entries, i, rng).Clear()


def _more(entries: Any, i: int, rng: random.Random) -> None:
  values = _values(_a_step(entries, i, rng))
  values.extend(list(values[:1]))


def _fewer(entries: Any, i: int, rng: random.Random) -> None:
  values = _values(_a_step(entries, i, rng))
  if values:
    del values[rng.randrange(len(values)) :]


def _change(entries: Any, i: int, rng: random.Random) -> None:
  """Another value, at the borders of the dtypes."""
  values = _values(_a_step(entries, i, rng))
  if not len(values):
    return
  place = rng.randrange(len(values))
  if isinstance(values[place], bytes):
    values[place] = rng.choice(
      [b"", values[place][:-1], values[place] + b"\0", rng.randbytes(9), b"\xff\xd8"]
    )
  elif isinstance(values[place], float):
    values[place] = rng.choice([np.nan, np.inf, -0.0, 1e30, 1e-40])
  else:
    values[place] = rng.choice([-1, 2, 127, 128, 255, 256, -129, 1 << 31, 1 << 62])


def _mutate_bytes(entries: Any, i: int, rng: random.Random) -> None:
  """An image or text whose bytes are damaged, in a record that is whole."""
  whole = [
    (values, place)
    for entry in entries
    for step in _steps_of(entry)
    for values in [_values(step)]
    for place, value in enumerate(values)
    if isinstance(value, bytes) and len(value) > 20
  ]
  if whole:
    values, place = rng.choice(whole)
    kind = rng.choice(["flip", "insert", "delete", "zeros", "cut", "garbage after"])
    values[place] = bytes(BYTES[kind](bytearray(values[place]), rng))


def _other_image(entries: Any, i: int, rng: random.Random) -> None:
  values = _values(_a_step(entries, i, rng))
  if len(values) and isinstance(values[0], bytes):
    shape = rng.choice([(8, 8, 3), (8, 8, 1), (4, 4, 1), (4, 4, 3), (9, 8, 3)])
    image = np.full(shape, rng.randrange(256), np.uint8)
    values[0] = encode_image(image, rng.choice(["jpeg", "png"]))


def _longer(entries: Any, i: int, rng: random.Random) -> None:
  steps = _steps_of(entries[i])
  if not isinstance(steps, list) and len(steps):
    for _ in range(rng.randrange(1, 3)):
      steps.add().CopyFrom(steps[0])


def _shorter(entries: Any, i: int, rng: random.Random) -> None:
  steps = _steps_of(entries[i])
  if not isinstance(steps, list) and len(steps):
    del steps[rng.randrange(len(steps)) :]


FEATURES: dict[str, Callable[[Any, int, random.Random], None]] = {
  "duplicate": _duplicate,
  "remove": _remove,
  "rename": _rename,
  "swap": _swap,
  "other kind": _other_kind,
  "no kind": _no_kind,
  "more values": _more,
  "fewer values": _fewer,
  "other value": _change,
  "damaged bytes": _mutate_bytes,
  "other image": _other_image,
  "longer": _longer,
  "shorter": _shorter,
}
