"""Write, then parse: every dtype and layout comes back bit for bit."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from t2r_seq import records, specs

Spec = specs.ExtendedTensorSpec

NUMERIC_DTYPES = (
  *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64),
  *(tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.float16, tf.bfloat16),
  *(tf.float32, tf.float64, tf.complex64, tf.complex128),
)
DTYPES = (*NUMERIC_DTYPES, tf.string)
LAYOUTS = ("plain", "raw", "varlen", "sequence", "sequence raw", "sequence varlen")
VARLEN_SIZE = 4


def bits(array: np.ndarray) -> Any:
  """What must be equal: the bytes, so that NaN and -0.0 count too."""
  array = np.asarray(array, object if isinstance(array, bytes) else None)
  return array.tolist() if array.dtype == object else (array.shape, array.tobytes())


def random_values(dtype: tf.DType, shape: tuple[int, ...], rng: Any) -> np.ndarray:
  """Draws any bit patterns of the dtype; of NaNs only numpy's own."""
  if dtype == tf.string:
    values = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
      values[index] = rng.bytes(rng.randint(0, 5))
    return values
  numpy_dtype = dtype.as_numpy_dtype
  if dtype == tf.bool:
    return rng.randint(0, 2, shape).astype(bool)
  if dtype.is_integer:
    info = np.iinfo(numpy_dtype)
    size = int(np.prod(shape, dtype=int))
    values = np.frombuffer(rng.bytes(size * dtype.size), numpy_dtype).copy()
    values[rng.rand(size) < 0.2] = info.min
    values[rng.rand(size) < 0.2] = info.max
    return values.reshape(shape)
  values = rng.standard_normal(shape) * 10.0 ** rng.randint(-4, 4)
  if dtype.is_complex:
    values = values + 1j * rng.standard_normal(shape)
  special = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan])[rng.randint(0, 5, shape)]
  return np.where(rng.rand(*shape) < 0.2, special, values).astype(numpy_dtype)


def make_spec(name: str, dtype: tf.DType, layout: str, shape: tuple[int, ...]) -> Spec:
  is_sequence = layout.startswith("sequence")
  if layout.endswith("varlen"):
    default = "x" if dtype == tf.string else 1
    return Spec(
      (VARLEN_SIZE,), dtype, name, is_sequence=is_sequence, varlen_default_value=default
    )
  data_format = "raw" if layout.endswith("raw") and dtype != tf.string else None
  return Spec(shape, dtype, name, is_sequence=is_sequence, data_format=data_format)


def expected_padding(values: np.ndarray, spec: Spec) -> np.ndarray:
  """Pads the last axis with the default, in numpy."""
  missing = VARLEN_SIZE - values.shape[-1]
  default = b"x" if spec.dtype == tf.string else 1
  extra = np.full((*values.shape[:-1], missing), default, values.dtype)
  return np.concatenate([values, extra], -1)


def draw(spec: Spec, num_steps: int, rng: Any) -> tuple[np.ndarray, np.ndarray]:
  """Returns what is written and what is to come back."""
  is_varlen = spec.varlen_default_value is not None
  shape = (rng.randint(0, VARLEN_SIZE + 1),) if is_varlen else tuple(spec.shape)
  if spec.is_sequence:
    shape = (num_steps, *shape)
  values = random_values(spec.dtype, shape, rng)
  return values, expected_padding(values, spec) if is_varlen else values


def parse(spec: Any, serialized: Any, **kwargs: Any) -> Any:
  parse_fn = records.create_parse_tf_example_fn(spec, **kwargs)
  return tf.nest.map_structure(lambda t: t.numpy(), parse_fn(tf.constant(serialized)))


# What is 'varlen' has a shape of its own.
SHAPES = [
  (layout, shape)
  for layout in LAYOUTS
  for shape in ([()] if layout.endswith("varlen") else [(), (2, 3)])
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("layout", "shape"), SHAPES, ids=str)
def test_every_dtype_and_layout_comes_back(
  dtype: tf.DType, layout: str, shape: tuple[int, ...]
) -> None:
  spec = {"x": make_spec("x", dtype, layout, shape)}
  rng = np.random.RandomState(0)
  for num_steps in (3, 1):
    written, want = draw(spec["x"], num_steps, rng)
    serialized = records.encode_example(spec, {"x": written})
    got = parse(spec, serialized)["x"]
    assert bits(got) == bits(want)
    batched = parse(spec, [serialized, serialized])["x"]
    assert bits(batched) == bits(np.stack([want, want]))


@st.composite
def structures(draw_from: Any) -> tuple[dict[str, Spec], int]:
  """A spec of several features, with sequences or without, and a seed."""
  is_sequence = draw_from(st.booleans())
  layouts = LAYOUTS if is_sequence else LAYOUTS[:3]
  num_specs = draw_from(st.integers(1, 5))
  spec = {}
  for i in range(num_specs):
    dtype = draw_from(st.sampled_from(DTYPES))
    layout = draw_from(st.sampled_from(layouts))
    shape = tuple(draw_from(st.lists(st.integers(1, 3), max_size=3)))
    spec[f"group/x{i}"] = make_spec(f"name{i}", dtype, layout, shape)
  return spec, draw_from(st.integers(0, 2**31))


@hypothesis.given(structures())
@hypothesis.settings(max_examples=40)
def test_random_structures_come_back_from_a_batch(
  drawn: tuple[dict[str, Spec], int],
) -> None:
  spec, seed = drawn
  rng = np.random.RandomState(seed)
  serialized, wants = [], []
  for num_steps in (2, 4):
    pairs = {path: draw(leaf, num_steps, rng) for path, leaf in spec.items()}
    written = {path: pair[0] for path, pair in pairs.items()}
    wants.append({path: pair[1] for path, pair in pairs.items()})
    serialized.append(records.encode_example(spec, written))
    single = parse(spec, serialized[-1])
    assert list(single) == sorted(spec)
    for path in spec:
      assert bits(single[path]) == bits(wants[-1][path]), path
  batched = parse(spec, serialized)
  for path, leaf in spec.items():
    for i, num_steps in enumerate((2, 4)):
      got = batched[path][i]
      if leaf.is_sequence:
        assert got.shape[0] == 4
        assert num_steps == 4 or not np.any(_padding(leaf, got[num_steps:]))
        got = got[:num_steps]
      assert bits(got) == bits(wants[i][path]), path


def _padding(spec: Spec, steps: np.ndarray) -> Any:
  """Steps past a record's end are zeros; in varlen ones the default is expected."""
  if spec.varlen_default_value is not None:
    default = b"x" if spec.dtype == tf.string else np.ones((), steps.dtype)
    return steps != default
  return steps


@pytest.mark.parametrize(
  ("layout", "data_format", "channels", "dtype"),
  [
    *(("one", "png", n, dtype) for n in (1, 3, 4) for dtype in (tf.uint8, tf.uint16)),
    *(("one", name, n, tf.uint8) for name, n in (("jpeg", 1), ("JPEG", 3))),
    *(("list", "png", 4, tf.uint16), ("varlen", "jpeg", 3, tf.uint8)),
    *(("sequence", "png", 3, tf.uint8), ("lists", "jpeg", 1, tf.uint8)),
  ],
)
def test_images_come_back(
  layout: str, data_format: str, channels: int, dtype: tf.DType
) -> None:
  size = (5, 7, channels)
  is_sequence = layout in ("sequence", "lists")
  spec = Spec(
    {"list": (2, *size), "varlen": (3, *size), "lists": (2, *size)}.get(layout, size),
    dtype,
    "image",
    is_sequence=is_sequence,
    data_format=data_format,
    varlen_default_value=0 if layout == "varlen" else None,
  )
  # A smooth ramp, which jpeg keeps nearly.
  y, x = np.mgrid[:5, :7]
  scale = 257 if dtype == tf.uint16 else 1
  image = np.stack([8 * x + 20 * y] * channels, -1).astype(dtype.as_numpy_dtype) * scale
  lead = {"list": (2,), "varlen": (2,), "sequence": (3,), "lists": (3, 2)}.get(
    layout, ()
  )
  written = np.broadcast_to(image, (*lead, *size))
  want = written
  if layout == "varlen":
    want = np.concatenate([written, np.zeros((1, *size), written.dtype)])
  serialized = records.encode_example({"x": spec}, {"x": written})
  got = parse({"x": spec}, serialized)["x"]
  batched = parse({"x": spec}, [serialized, serialized])["x"]
  assert got.dtype == dtype.as_numpy_dtype
  if data_format.lower() == "jpeg":
    np.testing.assert_allclose(got.astype(int), want.astype(int), atol=6)
  else:
    np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(batched, np.stack([got, got]))
