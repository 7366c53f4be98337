"""Columns of videos: every frame is the one of its step."""

from __future__ import annotations

import io
import os
import sys

import av
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, policies, preprocessors, specs, store
from t2r_seq.cli import main
from t2r_seq.store import layout, segments, values, videos
from t2r_seq.store.columns import FileColumns
from t2r_seq.store.salvage import salvage_store
from t2r_seq.store.summary import summarize_store

Spec = specs.ExtendedTensorSpec
FPS = 10
OPTIONS = {
  "camera": store.VideoOptions("libx264", gop=4, quality=20, fps=FPS),
  "depth": store.VideoOptions(fps=FPS, unit="mm"),
}
SPEC = {
  "camera": Spec((32, 48, 3), tf.uint8, is_sequence=True, data_format="mp4"),
  "depth": Spec((15, 21, 1), tf.uint16, is_sequence=True, data_format="mkv"),
  "place": Spec((), tf.int64, is_sequence=True),
}
LENGTHS = (5, 9, 1, 12)
WINDOW = {
  "camera": Spec((3, 32, 48, 3), tf.uint8, time_offsets=(-2, -1, 0)),
  "depth": Spec((15, 21, 1), tf.uint16, time_offsets=0),
  "place": Spec((), tf.int64, time_offsets=0),
}


def episode(number, length=None):
  length = length or LENGTHS[number]
  rng = np.random.default_rng(number)
  y, x = np.arange(32)[:, None], np.arange(48)
  shade = np.arange(length)[:, None, None] * 12 + 30 * number
  waves = [shade + 40 * np.sin(y / 6 + x / 9), shade + y + 0 * x, shade + x + 0 * y]
  return {
    "camera": np.stack(waves, -1).clip(0, 255).astype(np.uint8),
    "depth": rng.integers(0, 2**16, (length, 15, 21, 1)).astype(np.uint16),
    "place": np.arange(length) + sum(LENGTHS[:number]),
  }


def make(path, spec=SPEC, **options):
  return store.EpisodeStore.create(path, spec, videos=OPTIONS, **options)


@pytest.fixture(scope="module", name="made")
def fixture_made(tmp_path_factory):
  """A store of two segments; one of its episodes came step by step."""
  path = str(tmp_path_factory.mktemp("videos") / "store")
  with make(path) as writer:
    writer.append_episode(episode(0))
    writer.append_steps({k: v[:4] for k, v in episode(1).items()})
    for step in range(4, LENGTHS[1]):
      writer.append_step({k: v[step] for k, v in episode(1).items()})
    writer.end_episode()
  with store.EpisodeStore.append(path, segment="other", spec=SPEC) as writer:
    writer.append_episode(episode(2))
    writer.append_step({k: v[0] for k, v in episode(0).items()})
    writer.discard_episode()
    writer.append_episode(episode(3))
  return path


@pytest.fixture(scope="module", name="frames")
def fixture_frames(made):
  """All frames, as PyAV decodes the files that the column holds."""
  found = []
  for segment in store.EpisodeStore(made).segments:
    for number in range(len(segment)):
      file = io.BytesIO(segment.column("camera")[number])
      with av.open(file) as container:
        found += [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
  return np.stack(found)


def test_episodes(made, frames):
  opened = store.EpisodeStore(made)
  assert opened.episode_lengths.tolist() == list(LENGTHS)
  assert opened.columns["depth"].video.unit == "mm"
  for number, end in enumerate(opened.episode_ends):
    got, want = opened.episode(number), episode(number)
    np.testing.assert_array_equal(got.camera, frames[end - LENGTHS[number] : end])
    assert np.abs(got.camera.astype(int) - want["camera"]).mean() < 6
    np.testing.assert_array_equal(got.depth, want["depth"])
  column = summarize_store(made).columns[0]
  assert (column.dtype, column.num_rows) == ("mp4 uint8", sum(LENGTHS))


def test_video_bytes_do_not_bound_a_stack_of_frames(made, capsys):
  assert main(["inspect", made]) == 0
  shown = capsys.readouterr().out
  assert "Frames are inside of videos" in shown and "A stack of" not in shown


def test_windows_by_seeking(made, frames):
  windows = store.EpisodeStore(made).windows(WINDOW, padding="repeat")
  assert len(windows) == sum(LENGTHS)
  np.testing.assert_array_equal(windows[12].camera, frames[10:13])
  some = windows.read(tf.constant([26, 3, 26, 12], tf.int64))
  np.testing.assert_array_equal(some.camera[:, -1], frames[[26, 3, 26, 12]])
  np.testing.assert_array_equal(some.depth[1], episode(0)["depth"][3])


class Model:
  def __init__(self, features):
    struct = specs.TensorSpecStruct
    self.padding = "repeat"
    self.preprocessor = preprocessors.NoOpPreprocessor(
      lambda mode: struct(features), lambda mode: struct({})
    )


def train(path, features=WINDOW, take=9, **options):
  generator = data.StoreInputGenerator(path, batch_size=3, seed=1, **options)
  generator.set_specification_from_model(Model(features), "train")
  with generator.explain_failures():
    return [features for features, _ in generator.create_dataset("train").take(take)]


def test_training_decodes_each_frame_once_a_pool(made, frames, monkeypatch):
  read, decoded = videos.read_frames, []

  def watched(source, times, out, *args):
    decoded.append(len(times))
    return read(source, times, out, *args)

  monkeypatch.setattr(videos, "read_frames", watched)
  batches = train(made)
  places = np.concatenate([batch.place for batch in batches])
  assert sorted(places) == list(range(27)) and places.tolist() != sorted(places)
  assert sum(decoded[: 2 * len(LENGTHS)]) == 2 * 27  # Of both cameras.
  for batch in batches:
    np.testing.assert_array_equal(batch.camera[:, -1], frames[batch.place.numpy()])
  decoded.clear()
  loader = data.StoreWindowLoader(
    made, WINDOW, 3, "quasi_random", seed=1, padding="repeat", memory_budget=1
  )
  assert len(list(loader.dataset())) == 9
  assert max(decoded) <= 6  # Of an episode what three windows show.


def test_policy_is_given_frames():
  spec = Spec.from_spec(WINDOW["camera"], data_format="mp4")
  exported = policies.policy_module.exported_feature_specs(Model({"camera": spec}))
  assert exported["camera"].data_format is None


def test_merged_damaged_salvaged(made, frames, tmp_path):
  path = str(tmp_path / "store")
  salvage_store(made, path)
  opened = store.EpisodeStore(path)
  assert len(opened.segments) == 1 and store.verify_store(path).is_good
  np.testing.assert_array_equal(opened.episode(3).camera, frames[-12:])
  start, end = opened.column("camera").offsets[1:3].tolist()
  with open(f"{path}/segments/main/camera.data", "r+b") as file:
    file.seek(start)
    file.write(bytes(end - start))
  assert store.verify_store(path).bad("main") == [1]
  want = r"camera.data: episode 1: camera: expected a video that can be decoded, got"
  with pytest.raises(errors.StoreError, match=want):
    opened.episode(1)
  with pytest.raises(errors.StoreError, match=want):
    train(path)
  found = salvage_store(path, tmp_path / "saved")
  assert found.left_out == {("main", 1): "damaged in camera.data"}
  os.remove(f"{path}/segments/main/camera.data")
  with pytest.raises(errors.StoreError, match=r"camera.data: expected .* no such file"):
    store.EpisodeStore(path)


def test_merge(frames, tmp_path):
  path = str(tmp_path / "store")
  for segment in ("a", "b"):
    writer = make(path, segment=segment) if segment == "a" else None
    with writer or store.EpisodeStore.append(path, segment=segment) as writer:
      writer.append_episode(episode(0))
  assert store.EpisodeStore.merge(path) == 2
  np.testing.assert_array_equal(store.EpisodeStore(path).episode(1).camera, frames[:5])


def test_frame_that_is_not_there(tmp_path):
  """As another program might write it: the checksums fit, the frames do not."""
  path, steps = str(tmp_path / "store"), episode(3)
  folder = f"{path}/segments/main"
  columns = layout.make_columns("", SPEC, OPTIONS)
  make(path).close()
  writer = segments.SegmentWriter(folder, columns)
  writer.append("camera", values.Rows(9, episode(1)["camera"]))
  for name in ("depth", "place"):
    rows = values.collect("", {name: columns[name]}, {name: steps[name]}, True, False)
    writer.append(name, rows[name])
  writer.end_episode(12)
  writer.write_commit()
  writer.close()
  want = r"episode 0: camera: expected the frame of step 9 at 0.9\d+ s, got .* -0.1"
  with pytest.raises(errors.StoreError, match=want):
    store.EpisodeStore(path).episode(0)


def encoded(frames, fps=FPS):
  file = io.BytesIO()
  writer = videos.FrameWriter(file, fps, OPTIONS["camera"])
  for pixels in frames:
    writer.write(pixels)
  writer.close()
  return file.getvalue()


REFUSED = {
  "a size": ("camera", lambda v: v[:, :30], r"\(T, 32, 48, 3\) uint8, got \(5, 30, 4"),
  "a dtype": ("depth", lambda v: v.astype(np.int32), "uint16, got .* int32"),
  "frames": (
    "camera",
    lambda v: v[:4],
    "depth: expected 4 steps, as camera has, got 5",
  ),
  "no video": (
    "camera",
    lambda v: b"no",
    "a video of 32 x 48.* got none: video: .*who",
  ),
  "half of one": ("camera", lambda v: encoded(v)[:900], "expected a whole video"),
  "a video's size": (
    "camera",
    lambda v: encoded(v[:, :30]),
    "of 32 x 48, .*got 30 x 48",
  ),
  "a video's frames": (
    "camera",
    lambda v: encoded(v[:3]),
    "3 steps, as camera has, go",
  ),
  "a video's rate": (
    "camera",
    lambda v: encoded(v, 25),
    "i at i / 10 s, got the frame of step 1 at 0.0400 s",
  ),
}


def test_refused(tmp_path):
  path = str(tmp_path / "store")
  with make(path) as writer:
    for path_of, change, match in REFUSED.values():
      given = episode(0)
      given[path_of] = change(given[path_of])
      with pytest.raises(errors.SpecError, match=match):
        writer.append_episode(given)
    assert not writer.num_episodes
    given = episode(0)
    writer.append_episode({**given, "camera": encoded(given["camera"])})
  opened = store.EpisodeStore(path)
  assert opened.column("camera")[0] == encoded(given["camera"])
  with pytest.raises(errors.StoreError, match=r"videos .camera, depth.*decode_images"):
    FileColumns(opened)
  plain = {**SPEC, "camera": Spec((32, 48, 3), tf.uint8, is_sequence=True)}
  store.EpisodeStore(path, spec=plain)  # To read, frames are frames.
  with pytest.raises(errors.SpecError, match=r"camera: .*, got .* kept as mp4"):
    store.EpisodeStore.append(path, spec=plain)


BAD_SPECS = {
  "odd sizes": (
    Spec((31, 48, 3), tf.uint8, is_sequence=True, data_format="mp4"),
    "even",
  ),
  "depth": (Spec((4, 4, 1), tf.uint16, is_sequence=True, data_format="mp4"), "'mkv'"),
  "one image": (Spec((32, 48, 3), tf.uint8, data_format="mp4"), "of an episode"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_specs_that_are_no_videos(name, tmp_path):
  spec, match = BAD_SPECS[name]
  with pytest.raises(errors.SpecError, match=match):
    store.EpisodeStore.create(tmp_path / "s", {"x": spec, "place": SPEC["place"]})


def test_options_that_are_none(tmp_path, monkeypatch):
  with pytest.raises(
    errors.SpecError, match=r"fps: expected frames per second.* got 0"
  ):
    store.VideoOptions(fps=0)
  with pytest.raises(errors.SpecError, match="videos: place: expected a spec of mp4"):
    store.EpisodeStore.create(tmp_path, SPEC, videos={"place": store.VideoOptions()})
  with pytest.raises(errors.SpecError, match="Did you mean 'libx26"):
    store.EpisodeStore.create(tmp_path, SPEC, videos=store.VideoOptions("libx246"))
  monkeypatch.setitem(sys.modules, "av", None)
  with pytest.raises(ImportError, match=r"\[video\]"):
    store.EpisodeStore.create(tmp_path, SPEC)
  assert not os.listdir(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies of Linux")
def test_encoding_leaves_all_threads_as_they_were():
  def policies():
    threads = map(int, os.listdir("/proc/self/task"))
    return {
      (os.sched_getscheduler(t), os.sched_getparam(t).sched_priority) for t in threads
    }

  before = policies()
  writer = videos.FrameWriter(io.BytesIO(), 10.0, videos.VideoEncoding("libsvtav1"))
  for value in range(3):
    writer.write(np.full((64, 64, 3), value, np.uint8))
    assert policies() == before  # Also of the encoder's own threads.
  writer.close()
  assert policies() == before
