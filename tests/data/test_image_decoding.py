"""The same options of decoding, wherever input generators and loaders decode."""

from __future__ import annotations

import re

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
LENGTHS = (5, 7)
NUM_WINDOWS = sum(LENGTHS) - len(LENGTHS)
CROP = (3, 5, 16, 20)
HOW = records.ImageDecoding(False, "INTEGER_ACCURATE", {"image": CROP})
WINDOW = {
  "camera": Spec(
    (2, 16, 20, 3), tf.uint8, "image", data_format="jpeg", time_offsets=(0, 1)
  ),
  "step": Spec((), tf.int64, "step", time_offsets=0),
}
RNG = np.random.default_rng(0)


def encode(_):
  coarse = RNG.integers(0, 256, (4, 4, 3)).astype(np.float32)
  pixels = tf.cast(tf.image.resize(coarse, (24, 32)), tf.uint8)
  return tf.io.encode_jpeg(pixels).numpy()


EPISODES = [[encode(step) for step in range(length)] for length in LENGTHS]
STEPS = {
  100 * e + t: tf.io.decode_and_crop_jpeg(
    image, CROP, fancy_upscaling=False, dct_method="INTEGER_ACCURATE"
  ).numpy()
  for e, episode in enumerate(EPISODES)
  for t, image in enumerate(episode)
}
STORED = {
  "image": Spec((24, 32, 3), tf.uint8, is_sequence=True, data_format="jpeg"),
  "step": Spec((), tf.int64, is_sequence=True),
}
FEEDS = [
  {"image": images, "step": 100 * e + np.arange(len(images))}
  for e, images in enumerate(EPISODES)
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
  folder = tmp_path_factory.mktemp("sources")
  written = {
    path: specs.ExtendedTensorSpec.from_spec(spec, name=path)
    for path, spec in STORED.items()
  }
  records.write_records(str(folder / "a.tfrecord"), written, FEEDS)
  records.write_index([str(folder / "a.tfrecord")])
  with EpisodeStore.create(folder / "store", STORED) as writer:
    for feed in FEEDS:
      writer.append_episode(feed)
  return folder


def make_record_generator(folder, **kwargs):
  return data.DefaultRecordInputGenerator(str(folder / "a.tfrecord"), 2, **kwargs)


def make_store_generator(folder, **kwargs):
  return data.StoreInputGenerator(folder / "store", 2, **kwargs)


GENERATORS = {
  "streamed": (make_record_generator, {}),
  "in order": (make_record_generator, {"shuffle_buffer_size": 0}),
  "skipping": (make_record_generator, {"on_bad_record": "skip"}),
  "by an index": (make_record_generator, {"index": "require"}),
  "store": (make_store_generator, {}),
  "store, global": (make_store_generator, {"order": "global"}),
}


def check(batches):
  """Checks all frames of an epoch."""
  seen = []
  for batch in batches:
    for first, frames in zip(batch["step"].numpy(), batch["camera"], strict=True):
      seen.append(int(first))
      np.testing.assert_array_equal(frames, [STEPS[first], STEPS[first + 1]])
  assert sorted(seen) == sorted(step for step in STEPS if step + 1 in STEPS)


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_use_the_image_decoding(sources, name):
  make, options = GENERATORS[name]
  generator = make(sources, image_decoding=HOW, seed=0, **options)
  generator.set_feature_specifications(WINDOW)
  generator.set_label_specifications({})
  generator.set_padding("drop")
  dataset = generator.create_dataset("train").take(NUM_WINDOWS // 2)
  check([features for features, _ in dataset])


def test_loaders_use_the_image_decoding(sources):
  options = {"order": "sequential", "decode_images": HOW, "padding": "drop"}
  check(data.StoreWindowLoader(sources / "store", WINDOW, 2, **options).dataset())


def test_examples_use_the_image_decoding(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  stored = {"camera": Spec((24, 32, 3), tf.uint8, "image", data_format="jpeg")}
  wanted = {"camera": Spec((16, 20, 3), tf.uint8, "image", data_format="jpeg")}
  records.write_records(path, stored, [{"camera": image} for image in EPISODES[0]])
  for on_bad_record in ("raise", "skip"):
    generator = data.DefaultRecordInputGenerator(
      path, 5, on_bad_record=on_bad_record, image_decoding=HOW
    )
    generator.set_feature_specifications(wanted)
    generator.set_label_specifications({})
    ((features, _),) = generator.create_dataset("eval")
    want = np.stack([STEPS[t] for t in range(5)])
    np.testing.assert_array_equal(features["camera"], want)


def test_gin_configures_the_image_decoding(sources):
  with gin.unlock_config():
    gin.parse_config("""
      DefaultRecordInputGenerator.image_decoding = @ImageDecoding()
      ImageDecoding.fancy_upscaling = False
      ImageDecoding.dct_method = 'INTEGER_ACCURATE'
      ImageDecoding.crops = {'image': (3, 5, 16, 20)}
    """)
  try:
    generator = make_record_generator(sources)
  finally:
    gin.clear_config()
  generator.set_feature_specifications(WINDOW)
  generator.set_label_specifications({})
  generator.set_padding("drop")
  check([features for features, _ in generator.create_dataset("eval")])


def test_crop_of_no_column_is_refused(sources):
  how = records.ImageDecoding(crops={"img": CROP})
  want = "crops: img: expected an encoded image: [image], got nothing of that name."
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    data.StoreWindowLoader(sources / "store", WINDOW, 2, decode_images=how).dataset()
  whole = {**WINDOW, "camera": Spec.from_spec(WINDOW["camera"], shape=(2, 24, 32, 3))}
  with pytest.raises(errors.SpecError, match=r"\(24, 32, 3\).*got \(None, 16, 20"):
    data.StoreWindowLoader(sources / "store", whole, 2, decode_images=HOW).dataset()
  with pytest.raises(errors.SpecError, match="the size of its crop"):
    data.windows_of(str(sources / "a.tfrecord"), whole, image_decoding=HOW)
