import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import cli, records, specs
from t2r_seq.episodes import open_episodes
from t2r_seq.episodes.questions import find_questions
from t2r_seq.specs import Convention, Converter
from t2r_seq.store import EpisodeStore

RNG = np.random.default_rng(0)
COUNT = 40
WXYZ = RNG.normal([3, 0, 0, 0], 1, (COUNT, 4))
WXYZ /= np.linalg.norm(WXYZ, axis=1, keepdims=True)


def rotated(layout, size):
  converter = Converter(
    Convention(rotation="quaternion_wxyz"), Convention(rotation=layout), 4, size
  )
  return converter(WXYZ)


NOISE = RNG.normal(size=(COUNT, 3))
BLUE = np.minimum(np.array([0, 0, 50]) + RNG.integers(0, 200, (COUNT, 4, 4, 3)), 255)
CASES = {  # (values, what is asked, or None)
  "w first": (
    np.c_[NOISE, WXYZ],
    "'elements': [[3, 7, {'rotation': 'quaternion_wxyz'}",
  ),
  "w last": (np.c_[WXYZ[:, 1:], WXYZ[:, :1]], "{'rotation': 'quaternion_xyzw'}"),
  "rot6d": (
    np.c_[NOISE, rotated("rot6d_rows", 6)],
    "[[3, 9, {'rotation': 'rot6d_rows'",
  ),
  "a matrix": (rotated("matrix", 9), "{'rotation': 'matrix'}"),
  "a gripper": (
    np.c_[NOISE, RNG.integers(0, 2, COUNT) * 0.08],
    "[[3, 4, {'gripper': (0.08, 0.0, 'binary')}]]",
  ),
  "degrees": (90 * NOISE, "{'unit': 'deg'}"),
  "BGR": (BLUE.astype(np.uint8), "{'channels': 'bgr'}"),
  "noise": (NOISE, None),
  "pixels": (300 * np.abs(NOISE) + 200, None),
  "RGB": (BLUE[..., ::-1].astype(np.uint8), None),
}


@pytest.mark.parametrize("name", CASES)
def test_questions(name, tmp_path, capsys):
  values, want = CASES[name]
  values = values if values.dtype == np.uint8 else values.astype(np.float32)
  spec = specs.ExtendedTensorSpec(
    values.shape[1:], tf.as_dtype(values.dtype), "x", is_sequence=True
  )
  with EpisodeStore.create(tmp_path / "store", {"x": spec}) as writer:
    writer.append_episode({"x": values})
  found = find_questions(open_episodes(tmp_path / "store"))
  text = " ".join(found.get("x", ()))
  assert want in text if want else not text, text
  # In the spec that inspect writes it is a comment.
  assert cli.main(["inspect", str(tmp_path / "store"), "--format", "python"]) == 0
  out = capsys.readouterr().out
  assert ("# convention=" in out) == bool(want)
  scope = {}
  exec(out, scope)
  assert scope["SPEC"]["x"].convention is None
  # TFRecord files get questions, too.
  records.write_records(str(tmp_path / "x.tfrecord"), {"x": spec}, [{"x": values}])
  assert cli.main(["inspect", str(tmp_path / "x.tfrecord")]) == 0
  out = capsys.readouterr().out
  assert ("# convention=" in out) == bool(want and values.dtype != np.uint8)
