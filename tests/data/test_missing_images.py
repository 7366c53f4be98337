"""A camera that has no image in some steps: its mask is False there."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, records, specs, statistics, store, windows
from t2r_seq.episodes import open_episodes
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec


def values_of(episodes):
  return [episode.values for episode in episodes]


IS_PRESENT = [True, False, True, True, False, True]
IMAGES = [
  encode_image(np.full((4, 5, 3), 40 * (step + 1), np.uint8), "png") if there else b""
  for step, there in enumerate(IS_PRESENT)
]
STEPS = {
  "image": Spec((4, 5, 3), tf.uint8, "image", is_sequence=True, data_format="png"),
  "x": Spec((), tf.int64, "x", is_sequence=True),
}
WINDOW = {
  "image": Spec(
    (2, 4, 5, 3), tf.uint8, "image", data_format="png", time_offsets=(0, 1)
  ),
  "x": Spec((2,), tf.int64, "x", time_offsets=(0, 1)),
}


def bytes_feature(values):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def int_feature(values):
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_records(path, images=IMAGES, prefix=""):
  """Writes an episode as a SequenceExample, or as RLDS has it."""
  steps = range(len(images))
  if prefix:
    features = {
      f"{prefix}image": bytes_feature(images),
      f"{prefix}x": int_feature(steps),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features))
  else:
    lists = {
      "image": tf.train.FeatureList(feature=[bytes_feature([i]) for i in images]),
      "x": tf.train.FeatureList(feature=[int_feature([i]) for i in steps]),
    }
    lists = tf.train.FeatureLists(feature_list=lists)
    record = tf.train.SequenceExample(feature_lists=lists)
  with tf.io.TFRecordWriter(str(path)) as writer:
    writer.write(record.SerializeToString())
  return str(path)


def write_store(path):
  spec = {**STEPS, "image": Spec.from_spec(STEPS["image"], is_optional=True)}
  with store.EpisodeStore.create(path, spec) as writer:
    images = np.asarray(IMAGES, object)
    writer.append_episode({"image": images, "x": np.arange(len(IMAGES))})
  return str(path)


def indexed(path):
  records.write_index(write_records(path), STEPS)
  return data.DefaultRecordInputGenerator(str(path), batch_size=2, index="require")


def image_store(path, **options):
  return data.StoreInputGenerator(write_store(path), batch_size=2, **options)


# What reads the episode, and whether images must be declared optional for it.
SOURCES = {
  "records": lambda path: data.DefaultRecordInputGenerator(write_records(path)),
  "records with an index": indexed,
  "RLDS": lambda path: data.RldsInputGenerator(write_records(path, prefix="steps/")),
  "a store": image_store,
  "a store in global order": lambda path: image_store(path, order="global"),
}


def read(made, features, mode, padding="drop"):
  made.set_feature_specifications(specs.TensorSpecStruct(sorted(features.items())))
  made.set_label_specifications(specs.TensorSpecStruct())
  made.set_padding(padding)
  with made.explain_failures():
    found = {}
    for batch, _ in made.create_dataset(mode).unbatch().take(40):
      found[int(batch["x"][0])] = specs.map_leaves(lambda leaf: leaf.numpy(), batch)
    return found


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", SOURCES)
def test_masks(name, mode, tmp_path):
  features = windows.add_mask_specs(specs.TensorSpecStruct(WINDOW), ["image", "x"])
  if "store" in name:
    features["image"] = Spec.from_spec(features["image"], is_optional=True)
  found = read(SOURCES[name](tmp_path / "a"), features, mode, ("drop", "zero"))
  assert sorted(found) == [*range(len(IMAGES))]
  for step, window in found.items():
    is_real = [step + offset < len(IMAGES) for offset in (0, 1)]
    want = [real and IS_PRESENT[step + i] for i, real in enumerate(is_real)]
    assert window["image_mask"].tolist() == want
    assert window["x_mask"].tolist() == is_real
    assert window["image"].any(axis=(1, 2, 3)).tolist() == want


@pytest.mark.parametrize(
  ("name", "mode"),
  [("records", "train"), ("records with an index", "eval"), ("RLDS", "eval")],
)
def test_required_images_without_a_mask(name, mode, tmp_path):
  made = SOURCES[name](tmp_path / "a")
  match = "image: expected an image in every step, got an empty string"
  with pytest.raises(Exception, match=match) as found:
    read(made, WINDOW, mode)
  assert "Add its mask (windows.add_mask_specs)" in str(found.value)


def test_optional_images_without_a_mask(tmp_path):
  features = {**WINDOW, "image": Spec.from_spec(WINDOW["image"], is_optional=True)}
  found = read(SOURCES["records"](tmp_path / "a"), features, "eval")
  assert not found[0]["image"][1].any()


def test_windows_of_strings():
  """Frames that are decoded later."""
  episode = {"image": tf.constant(IMAGES), "x": tf.range(len(IMAGES), dtype=tf.int64)}
  spec = windows.add_mask_specs(specs.TensorSpecStruct(WINDOW), ["image"])
  window = windows.gather_windows(episode, tf.constant([0, 2]), spec)
  assert window["image_mask"].numpy().tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("kind", ["records", "RLDS", "a store", "episodes"])
def test_statistics(kind, images, tmp_path):
  path = str(tmp_path / "a")
  if kind == "a store":
    write_store(path)
  else:
    write_records(path, prefix="steps/" if kind == "RLDS" else "")
  source = path
  if kind == "episodes":
    source = open_episodes(path, "tfrecord")
  spec = records.rlds_specs(STEPS) if kind == "RLDS" else None
  found = statistics.compute_statistics(source, spec=spec, images=images)
  name = next(path for path in found.paths if path.endswith("image"))
  assert found.paths[name].rows == sum(IS_PRESENT)
  if images:
    assert found.paths[name].measure("min").min() == 40


def test_no_image_at_all(tmp_path):
  path = write_records(tmp_path / "a", [b""] * 3)
  spec = {**STEPS, "image": Spec.from_spec(STEPS["image"], is_optional=True)}
  found = statistics.compute_statistics(path, spec=spec, images=True)
  assert found.paths["image"].rows == 0


def test_conversion_to_pixels_rejects_missing_images(tmp_path):
  path = write_records(tmp_path / "r")
  spec = {**STEPS, "image": Spec.from_spec(STEPS["image"], is_optional=True)}
  with pytest.raises(
    errors.ConversionError, match=r"image: expected an image in every .* at step 1"
  ):
    convert.convert(
      path,
      str(tmp_path / "pixels"),
      spec=spec,
      decode_images=True,
    )
  convert.convert(path, str(tmp_path / "encoded"), spec=spec)


def test_images_of_lerobot(tmp_path):
  """Images that are not in its files are no black ones."""
  pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
  with store.EpisodeStore.create(tmp_path / "s", STEPS) as writer:
    images = np.asarray([i or IMAGES[0] for i in IMAGES], object)
    writer.append_episode({"image": images, "x": np.arange(len(images))})
  options = dict(fps=10, task="a", video_codec="png")
  folder = tmp_path / "o.lerobot"
  convert.convert(tmp_path / "s", folder, **options)
  (name,) = (folder / "data").rglob("*.parquet")
  table = pq.read_table(name)
  (key,) = (n for n in table.column_names if n.endswith("image"))
  rows = table[key].to_pylist()
  rows[3]["bytes"] = b""
  field = table.schema.field(key)
  index = table.column_names.index(key)
  pq.write_table(table.set_column(index, field, pa.array(rows, field.type)), name)
  with pytest.raises(errors.ConversionError, match="images that are not in the file"):
    values_of(open_episodes(folder))
