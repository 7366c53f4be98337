import itertools
import pickle

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import Convention, Converter
from t2r_seq.specs import rotations as rotations_lib

LAYOUTS = rotations_lib.SIZES
CONTROLS = ("absolute", "relative", "delta", "tool_relative", "tool_delta")
PER_PAIR = 1_200  # More than a million for all pairs.


def quaternions(count, seed=0):
  """Random ones; of angles 0 and pi, near both, and where Euler angles are singular."""
  rng = np.random.default_rng(seed)
  q = rng.normal(size=(count, 4))
  part = count // 8
  q[:part, 0] = 0
  q[part : 2 * part, 0] *= 1e-8
  q[2 * part : 3 * part, 1:] *= 1e-7
  q[3 * part : 4 * part] = np.round(q[3 * part : 4 * part])
  q[3 * part : 4 * part, 0] += 2 * (np.abs(q[3 * part : 4 * part]).max(1) == 0)
  return q / np.linalg.norm(q, axis=1, keepdims=True)


def matrices(layout, values):
  to_matrix = Converter(
    Convention(rotation=layout), Convention(rotation="matrix"), LAYOUTS[layout], 9
  )
  return to_matrix(values).reshape(*values.shape[:-1], 3, 3)


def pose(rotation, gripper=(1, 0), **fields):
  size = LAYOUTS[rotation]
  parts = [
    (0, 3, Convention(unit="m")),
    (3, 3 + size, Convention(rotation=rotation)),
    (3 + size, 4 + size, Convention(gripper=gripper)),
  ]
  return Convention(**fields, elements=parts), 4 + size


def test_all_pairs_of_rotations_round_trip():
  wxyz = Convention(rotation="quaternion_wxyz")
  values = {}
  for number, (name, size) in enumerate(LAYOUTS.items()):
    own = Converter(wxyz, Convention(rotation=name), 4, size)
    values[name] = own(quaternions(PER_PAIR, number))
  for one, other in itertools.product(LAYOUTS, repeat=2):
    forth = Converter(
      Convention(rotation=one),
      Convention(rotation=other),
      LAYOUTS[one],
      LAYOUTS[other],
    )
    back = forth.inverse()(forth(values[one]))
    error = np.abs(matrices(one, back) - matrices(one, values[one])).max()
    assert error < 1e-6, (one, other, error)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotations_round_trip_in_the_graph_in_float32(layout):
  q = quaternions(2_000).astype(np.float32)
  wxyz = Convention(rotation="quaternion_wxyz")
  forth = Converter(wxyz, Convention(rotation=layout), 4, LAYOUTS[layout])
  back = tf.function(lambda x: forth.inverse()(forth(x)))(q)
  assert back.dtype == tf.float32
  error = matrices("quaternion_wxyz", back.numpy()) - matrices("quaternion_wxyz", q)
  assert np.abs(error).max() < 1e-6


HALF = np.sqrt(0.5)
KNOWN = {  # A quarter turn about z, and then one about x.
  "quaternion_wxyz": [0.5, 0.5, -0.5, 0.5],
  "quaternion_xyzw": [0.5, -0.5, 0.5, 0.5],
  "matrix": [0, -1, 0, 0, 0, -1, 1, 0, 0],
  "rot6d_rows": [0, -1, 0, 0, 0, -1],
  "rot6d_columns": [0, 0, 1, -1, 0, 0],
  "axis_angle": 2 * np.pi / 3 * np.array([1, -1, 1]) / np.sqrt(3),
  "euler_zxy_extrinsic": [np.pi / 2, np.pi / 2, 0],
  "euler_xzy_intrinsic": [np.pi / 2, np.pi / 2, 0],
  "euler_xzx_intrinsic": [np.pi / 2, np.pi / 2, 0],
}


@pytest.mark.parametrize("layout", KNOWN)
def test_layouts_of_a_known_rotation(layout):
  found = matrices(layout, np.array([KNOWN[layout]], np.float64))[0]
  want = np.array([[0, -1, 0], [0, 0, -1], [1, 0, 0]])
  np.testing.assert_allclose(found, want, atol=1e-12)


def test_signs_of_quaternions_are_continuous_in_a_chunk():
  angles = np.linspace(0, 4 * np.pi, 50)
  vectors = np.stack([0 * angles, 0 * angles, np.mod(angles, 2 * np.pi)], -1)[None]
  to_quaternion = Converter(
    Convention(rotation="axis_angle"), Convention(rotation="quaternion_xyzw"), 3, 4
  )
  found = to_quaternion(vectors, has_steps=True)[0]
  assert np.all((found[1:] * found[:-1]).sum(-1) > 0.9)
  graph = tf.function(lambda x: to_quaternion(x, has_steps=True))(vectors)[0]
  np.testing.assert_allclose(graph, found, atol=1e-12)


@pytest.mark.parametrize("rotation", ["quaternion_xyzw", "rot6d_rows", "axis_angle"])
@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(CONTROLS, 2)])
def test_controls_round_trip(before, after, rotation):
  rng = np.random.default_rng(0)
  source, size = pose("quaternion_wxyz", control=before, reference="state")
  target, target_size = pose(rotation, (-1, 1), control=after, reference="state")
  state = pose("quaternion_xyzw")
  values, now = rng.normal(size=(5, 6, size)), rng.normal(size=(5, 8))
  for each in (values, now):
    each[..., 3:7] /= np.linalg.norm(each[..., 3:7], axis=-1, keepdims=True)
  forth = Converter(source, target, size, target_size, state=state)
  moved = forth(values, now, has_steps=True)
  assert moved.shape == (5, 6, target_size)
  back = forth.inverse()(moved, now, has_steps=True)
  np.testing.assert_allclose(back[..., :3], values[..., :3], atol=1e-9)
  np.testing.assert_allclose(back[..., 7], values[..., 7], atol=1e-9)
  error = matrices("quaternion_wxyz", back[..., 3:7]) - matrices(
    "quaternion_wxyz", values[..., 3:7]
  )
  assert np.abs(error).max() < 1e-9
  graph = tf.function(lambda x, s: forth(x, s, has_steps=True))(values, now)
  np.testing.assert_allclose(graph, moved, atol=1e-6)


def as_transforms(position, wxyz):
  found = np.zeros((*position.shape[:-1], 4, 4))
  found[..., :3, :3] = matrices("quaternion_wxyz", wxyz)
  found[..., :3, 3], found[..., 3, 3] = position, 1
  return found


def test_tool_relative_is_the_motion_in_the_tools_frame():
  rng = np.random.default_rng(2)
  fields = {"reference": "state"}
  source, size = pose("quaternion_wxyz", control="absolute")
  target, target_size = pose("matrix", control="tool_relative", **fields)
  forth = Converter(source, target, size, target_size, state=(source, size))
  values = np.concatenate(
    [rng.normal(size=(4, 3)), quaternions(4), np.ones((4, 1))], axis=-1
  )
  now = np.concatenate([rng.normal(size=3), quaternions(1)[0], [0.0]])
  found = forth(values, now, has_steps=True)
  start = as_transforms(now[:3], now[3:7])
  want = np.linalg.inv(start) @ as_transforms(values[:, :3], values[:, 3:7])
  np.testing.assert_allclose(found[:, :3], want[:, :3, 3], atol=1e-12)
  np.testing.assert_allclose(
    found[:, 3:12].reshape(4, 3, 3), want[:, :3, :3], atol=1e-12
  )
  np.testing.assert_array_equal(found[:, 12], values[:, 7])  # A gripper is absolute.


SMALL = [  # (source, target, values, want)
  (dict(unit="deg"), dict(unit="rad"), [180.0], [np.pi]),
  (dict(unit="mm"), dict(unit="m"), [250.0], [0.25]),
  (dict(gripper=(1, 0)), dict(gripper=(-1, 1)), [1.0, 0.25], [-1.0, 0.5]),
  (dict(gripper=(1, 0)), dict(gripper=(0, 1, "binary")), [0.7, 0.2], [0.0, 1.0]),
  (dict(rotation="quaternion_wxyz"), dict(rotation="quaternion_xyzw"),
   [0.5, -0.5, 0.5, 0.5], [-0.5, 0.5, 0.5, 0.5]),
  (dict(rotation="axis_angle", unit="deg"), dict(rotation="axis_angle"),
   [0.0, 90.0, 0.0], [0.0, np.pi / 2, 0.0]),
  (dict(unit="deg", names=("pan", "lift")), dict(unit="rad", names=("lift", "pan")),
   [0.0, 180.0], [np.pi, 0.0]),
  (dict(names=("a", "b")), dict(names=("c", "b")), [1.0, 2.0], [1.0, 2.0]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "values", "want"), SMALL)
def test_small_conversions(source, target, values, want):
  forth = Converter(Convention(**source), Convention(**target), len(values))
  values = np.array([values])
  if "gripper" in source:
    forth = Converter(Convention(**source), Convention(**target), 1)
    values = values.T
  found = forth(values)
  np.testing.assert_allclose(np.ravel(found), want, atol=1e-12)
  if "binary" not in target.get("gripper", ()):
    np.testing.assert_allclose(forth.inverse()(found), values, atol=1e-12)


STATES = {  # (action, state, where the state has the elements of the action)
  "undeclared": (dict(control="absolute"), None, [0, 1, 2, 3, 4, 5]),
  "of one unit": (
    dict(control="absolute", unit="m"),
    dict(unit="m"),
    [0, 1, 2, 3, 4, 5],
  ),
  "of parts, for an action without": (
    dict(control="absolute"),
    dict(elements=[(0, 3, dict(unit="m")), (3, 7, dict(rotation="quaternion_wxyz"))]),
    [0, 1, 2, 3, 4, 5],
  ),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_other_parts(name):
  action, state, places = STATES[name]
  source = Convention(**action)
  target = Convention(**{**action, "control": "relative", "reference": "s"})
  values = np.random.default_rng(0).normal(size=(2, 4, 6))
  now = np.random.default_rng(1).normal(size=(2, 9))
  forth = Converter(source, target, 6, 6, state=(Convention.of(state), 9))
  found = forth(values, now, has_steps=True)
  np.testing.assert_allclose(found, values - now[:, None, places])
  np.testing.assert_allclose(forth.inverse()(found, now, has_steps=True), values)


def test_state_in_another_place_and_layout():
  source, size = pose("axis_angle", control="absolute")
  target, target_size = pose("rot6d_rows", control="tool_relative", reference="s[2:]")
  for state in (
    None,
    Convention(elements=[(2, 5, {}), (5, 8, dict(rotation="axis_angle"))]),
  ):
    forth = Converter(source, target, size, target_size, state=(state, 12))
    values = np.random.default_rng(0).normal(0, 0.5, size=(2, 4, size))
    now = np.random.default_rng(1).normal(0, 0.5, size=(2, 12))
    now[0, 2:8] = values[0, 0, :6]
    found = forth(values, now, has_steps=True)
    np.testing.assert_allclose(found[0, 0, :9], [0, 0, 0, 1, 0, 0, 0, 1, 0], atol=1e-9)
    back = forth.inverse()(found, now, has_steps=True)
    np.testing.assert_allclose(back, values, atol=1e-9)


def test_channels_are_reversed():
  images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 4), np.uint8)
  flip = Converter(Convention(channels="bgr"), Convention(channels="rgb"), 4)
  np.testing.assert_array_equal(flip(images), images[..., [2, 1, 0, 3]])
  np.testing.assert_array_equal(flip(tf.constant(images)), images[..., [2, 1, 0, 3]])


def test_equal_or_missing_declarations_change_nothing():
  values = np.random.default_rng(0).normal(size=(3, 8))
  known, size = pose("quaternion_wxyz", control="absolute")
  for source, target in ((known, known), (known, None), (None, known), (None, None)):
    same = Converter(source, target, size)
    assert not same.changes
    assert same(values) is values
  assert Converter(known, None, size).one_sided[:1] == ["elements 0 to 3: unit='m'"]


REFUSED = [
  (dict(frame="base"), dict(frame="camera"), "expected frame 'camera', got 'base'"),
  (dict(unit="m"), dict(unit="rad"), "expected a unit like 'rad', got 'm'"),
  (dict(control="velocity"), dict(control="absolute"), "got 'velocity'"),
  (dict(control="absolute"), dict(control="relative"), "expected a reference"),
]


@pytest.mark.parametrize(("source", "target", "match"), REFUSED)
def test_impossible_conversions_are_refused(source, target, match):
  with pytest.raises(errors.SpecError, match=match):
    Converter(Convention(**source), Convention(**target), 3)


INVALID = [
  (dict(unit="meter"), "unit: expected one of"),
  (dict(rotation="quaternion_wxy"), "Did you mean 'quaternion_wxyz'"),
  (dict(rotation="matrix", unit="rad"), "expected no unit for the rotation matrix"),
  (dict(gripper=(1, 1)), "open value, closed value"),
  (dict(gripper=(1, 0, "on")), "open value, closed value"),
  (dict(names="abc"), "a different text for each element"),
  (dict(names=3), "a different text for each element, got 3"),
  (dict(elements=3), "elements: expected a list of parts, got 3"),
  (dict(elements=[(0, 3, {"rotation": "matrix"})]), "expected 9 numbers for matrix"),
  (dict(elements=[(0, 3, {}), (2, 4, {})]), "increasing ranges"),
]


@pytest.mark.parametrize(("fields", "match"), INVALID)
def test_invalid_conventions_are_refused(fields, match):
  with pytest.raises(errors.SpecError, match=match):
    Convention(**fields)
  with pytest.raises(errors.SpecError, match=match):
    specs.ExtendedTensorSpec((9,), tf.float32, "x", convention=fields)


def test_unknown_field_suggests_the_nearest():
  with pytest.raises(errors.SpecError, match="Did you mean 'gripper'"):
    specs.ExtendedTensorSpec((1,), tf.float32, convention={"griper": (1, 0)})


@pytest.mark.parametrize(
  ("shape", "fields", "match"),
  [
    ((7,), dict(rotation="quaternion_wxyz"), "expected 4 elements, got 7"),
    ((2,), dict(elements=[(0, 3, dict(unit="m"))]), "at least 3 elements, got 2"),
    ((2,), dict(names=("a",)), "expected 1 elements, got 2"),
    ((8, 8, 1), dict(channels="rgb"), "an image for channels"),
  ],
)
def test_convention_fits_its_shape(shape, fields, match):
  with pytest.raises(errors.SpecError, match=match):
    specs.ExtendedTensorSpec(shape, tf.float32, "x", convention=fields)


def test_specs_keep_conventions():
  known, size = pose("rot6d_rows", names=None, control="relative", reference="s[0:9]")
  spec = specs.ExtendedTensorSpec(
    (4, size), tf.float32, "a", time_offsets=range(4), convention=known
  )
  copies = [
    pickle.loads(pickle.dumps(spec)),
    specs.ExtendedTensorSpec.from_json(spec.to_json()),
    specs.ExtendedTensorSpec.from_proto(spec.to_proto()),
    specs.ExtendedTensorSpec.from_spec(spec),
    eval(repr(spec), {"tf": tf, **vars(specs), "ExtendedTensorSpec": type(spec)}),
  ]
  for copy in copies:
    assert copy.is_identical_to(spec)
    assert copy.convention == known
  assert not specs.ExtendedTensorSpec.from_spec(spec, convention=None).is_identical_to(
    spec
  )
  assert specs.ExtendedTensorSpec.from_spec(spec, shape=(4, 3)).convention is None
  plain = specs.ExtendedTensorSpec((2,), tf.float32)
  assert "convention" not in plain.to_json() and "convention" not in repr(plain)


def test_changed_words_move_the_elements():
  known, size = pose("quaternion_wxyz", control="absolute", frame="base")
  found, new_size = known.replace(
    size, rotation="rot6d_rows", control="relative", reference="s", gripper=(0, 1)
  )
  assert new_size == 10
  assert [(a, b) for a, b, _ in found.elements] == [(0, 3), (3, 9), (9, 10)]
  turn = found.elements[1][2]
  assert (turn.rotation, turn.control, turn.frame) == ("rot6d_rows", "relative", "base")
  assert found.elements[2][2] == Convention(gripper=(0, 1), frame="base")
  with pytest.raises(
    errors.SpecError, match="expected a part that declares a rotation"
  ):
    Convention(unit="m").replace(3, rotation="matrix")
