"""Data sets of all formats carry what their numbers mean."""

import json

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, episodes, errors, specs
from t2r_seq.specs import Convention
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
POSE = Convention(
  control="absolute",
  names=[*"xyzabcd", "grip"],
  elements=[
    (0, 3, Convention(unit="m")),
    (3, 7, Convention(rotation="quaternion_xyzw")),
    (7, 8, Convention(gripper=(1, 0))),
  ],
)


@pytest.fixture
def store_path(tmp_path):
  flat = {
    "state": Spec((8,), tf.float32, "state", is_sequence=True),
    "action": Spec((8,), tf.float32, "action", is_sequence=True, convention=POSE),
  }
  with EpisodeStore.create(tmp_path / "store", flat, {"fps": 10}) as writer:
    for seed in range(3):
      rows = np.random.default_rng(seed).normal(size=(6, 8)).astype(np.float32)
      writer.append_episode({"state": rows, "action": rows})
  return tmp_path / "store"


@pytest.mark.parametrize(
  ("suffix", "extra"), [(".lerobot", "pyarrow"), (".zarr", "zarr"), (".hdf5", "h5py")]
)
def test_formats_keep_conventions(store_path, suffix, extra):
  pytest.importorskip(extra)
  opened = episodes.open_episodes(store_path)
  assert opened.spec["action"].convention == POSE
  path = store_path.parent / f"copy{suffix}"
  options = {"task": "push"} if suffix == ".lerobot" else {}
  episodes.write_episodes(opened, path, **options)
  assert episodes.open_episodes(path).spec["action"].convention == POSE
  if suffix == ".lerobot":
    # Also without what a conversion leaves for this library alone.
    (path / "meta" / "t2r_seq.json").unlink()
    info = json.loads((path / "meta" / "info.json").read_text())
    assert info["features"]["action"]["names"] == [*POSE.names]
    found = episodes.open_episodes(path).spec
    assert found["action"].convention == POSE and found["state"].convention is None


def test_file_and_an_argument_declare(store_path):
  (store_path / "conventions.json").write_text(
    json.dumps({"state": {"unit": "deg"}, "other": {"unit": "m"}})
  )
  found = episodes.open_episodes(store_path).spec
  assert found["state"].convention == Convention(unit="deg")
  given = {"state": Convention(unit="rad"), "action": {"unit": "mm"}}
  found = episodes.open_episodes(store_path, conventions=given).spec
  assert found["state"].convention == Convention(unit="rad")
  assert found["action"].convention == Convention(unit="mm")
  with pytest.raises(errors.SpecError, match="actoin"):
    episodes.open_episodes(store_path, conventions={"actoin": {}})


@pytest.mark.parametrize(
  "make", [data.EpisodesInputGenerator, data.StoreInputGenerator]
)
def test_training_refuses_data_of_another_convention(store_path, make, caplog):
  other, _ = POSE.replace(8, rotation="quaternion_wxyz")
  for declared, is_right in ((POSE, True), (other, False)):
    generator = make(str(store_path), batch_size=2)
    generator.set_feature_specifications(
      {"state": Spec((8,), tf.float32, "state", convention={"unit": "rad"})}
    )
    generator.set_label_specifications(
      {"action": Spec((8,), tf.float32, "action", convention=declared)}
    )
    if is_right:
      next(iter(generator.create_dataset("train")))
      continue
    with pytest.raises(errors.SpecError) as caught:
      generator.create_dataset("train")
    text = str(caught.value)
    assert "quaternion_wxyz" in text and "quaternion_xyzw" in text
    assert "ConvertConventions" in text
  name = make.__name__
  warnings = [
    r.getMessage()
    for r in caplog.records
    if f"{name}: features/state" in r.getMessage()
  ]
  assert len(warnings) == 1 and "unit='rad'" in warnings[0]
