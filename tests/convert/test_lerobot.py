"""LeRobot's datasets: what its own tools wrote, what is refused, and what we write."""

from __future__ import annotations

import glob
import json
import os
import pathlib
import shutil
import sys

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, files, specs, store
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes
from t2r_seq.formats.lerobot_folder import LeRobotFolder, delta_time_offsets
from t2r_seq.specs.packing import encode_image
from t2r_seq.store import videos
from tests.convert import lerobot_sets as sets

Spec = specs.ExtendedTensorSpec
REAL = sets.REAL
CAMERA = sets.CAMERA
ROWS = "own/data/chunk-000/file-000.parquet"
VIDEO = f"own/videos/{CAMERA}/chunk-000/file-000.mp4"
EPISODES = "own/meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
  """A dataset of our own writer, to be copied."""
  here = os.getcwd()
  os.chdir(tmp_path_factory.mktemp("own"))
  folder = os.path.abspath(sets.make_folder("own.lerobot"))
  os.chdir(here)
  return folder


@pytest.fixture
def copy(own, here):
  """A copy of it that a test may damage."""
  shutil.copytree(own, "own")
  return "own"


def decoded(path):
  with av.open(str(path)) as container:
    return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def read(folder, episode, *keys):
  return LeRobotFolder(folder).read(episode, keys)


@pytest.mark.parametrize("name", REAL)
def test_real_sets(name):
  """Every value, and every frame by its stamp, of what LeRobot's own tools wrote."""
  manifest = json.loads((REAL[name] / "MANIFEST.json").read_text())
  folder = LeRobotFolder(REAL[name])
  assert (folder.fps, folder.lengths.tolist()) == (15, manifest["lengths"])
  for episode, stamped in enumerate(manifest["stamp_episode_of_each_episode"]):
    values = folder.read(episode, folder.spec)
    steps = np.arange(folder.lengths[episode])
    state = 100 * stamped + steps[:, None] + np.arange(7) / 8
    np.testing.assert_array_equal(values["observation.state"], state)
    np.testing.assert_array_equal(values["next.reward"], steps / 4)
    np.testing.assert_array_equal(values["next.done"], steps == steps[-1])
    for camera, described in manifest["cameras"].items():
      images = values[key := f"observation.images.{camera}"]
      if images.dtype == object:
        images = np.stack([tf.io.decode_png(image).numpy() for image in images])
      assert images.shape[1:] == folder.spec[key].shape
      got = [sets.stamp(image, described) for image in images]
      assert got == [(stamped, step) for step in steps]
  for sample in manifest["samples"]:
    values = folder.read(sample["episode"], ["task", "timestamp", "index", "action"])
    got = {key: value[sample["step"]] for key, value in values.items()}
    want = sample["lerobot_reader"]
    assert got["task"].decode() == want["task"]
    assert (got["timestamp"], got["index"]) == (want["timestamp"], want["index"])
    assert got["action"].tolist() == want["action"]


@pytest.mark.parametrize(
  "name",
  [n for n in REAL if n in ("lerobot_v3_h264_gop30", "lerobot_v3", "lerobot_v21")],
)
def test_windows_of_real_videos_by_seeking(name):
  folder, key = LeRobotFolder(REAL[name]), "observation.images.front"
  for episode in range(len(folder)):
    whole = folder.read(episode, [key])[key]
    for start in range(0, len(whole), 3):
      some = folder.frames(episode, key, start, start + 4)
      np.testing.assert_array_equal(some, whole[start : start + 4])


def test_metadata_of_version_2_without_a_key(here):
  shutil.copytree(REAL["lerobot_v21"], "own")
  name = pathlib.Path("own/meta/episodes.jsonl")
  name.chmod(0o644)
  name.write_text(name.read_text().replace('"length"', '"len"'))
  match = "own/meta: expected tasks and episodes that can be read, got KeyError: 'len"
  with pytest.raises(errors.ConversionError, match=match):
    LeRobotFolder("own")


def test_missing_pyarrow_is_found_at_construction(monkeypatch):
  monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
  for name in ("lerobot_v21", "lerobot_v3"):
    with pytest.raises(ImportError, match=r"pip install 't2r_seq\[lerobot\]'"):
      LeRobotFolder(REAL[name])


def test_real_recording_that_was_killed():
  folders = sets.real_folders()
  with pytest.raises(
    errors.ConversionError, match="got 3: the recording was not finis"
  ):
    LeRobotFolder(folders["lerobot_v3_unfinalized"])


def test_round_trip(own, data):
  verify_conversion(f"{own}.store", own)
  convert.convert(own, "back")
  before, after = (store.EpisodeStore(p) for p in (f"{own}.store", "back"))
  assert after.spec.to_json() == before.spec.to_json()
  assert after.metadata == before.metadata
  pixels = decoded(f"{own}/videos/{CAMERA}/chunk-000/file-000.mp4")
  for number, end in enumerate(np.cumsum(sets.LENGTHS)):
    want, got = sets.episode(number), dict(after.episode(number).items())
    frames = pixels[end - sets.LENGTHS[number] : end]
    assert np.abs(frames.astype(int) - want[CAMERA]).mean() < 8
    want[CAMERA] = frames
    assert sorted(got) == sorted(want)
    for path, values in want.items():
      np.testing.assert_array_equal(got[path], values)


def test_videos_that_are_kept(own, here, monkeypatch):
  """From LeRobot's files to a store, and back, and back: no frame is encoded anew."""
  want = [episode.values for episode in open_episodes(own)]
  keep = dict(keep_videos=True, drop=("reward",))
  with monkeypatch.context() as patched:
    patched.setattr(videos.FrameWriter, "write", None)
    convert.convert(own, "kept", **keep)
    convert.convert("kept", "again.lerobot")
    convert.convert("again.lerobot", "back")
  kept, back = store.EpisodeStore("kept"), store.EpisodeStore("back")
  assert kept.spec[CAMERA].data_format == "mp4"
  how = kept.columns[CAMERA].video
  assert (how.fps, how.gop) == (sets.FPS, 4) and how == back.columns[CAMERA].video
  assert back.spec.to_json() == kept.spec.to_json()
  assert back.metadata == kept.metadata
  for number, values in enumerate(want):
    for found in (kept.episode(number), back.episode(number)):
      assert sorted(found) == sorted({*values} - {"reward"})
      for path, value in found.items():
        np.testing.assert_array_equal(value, values[path])
  for source, made in (
    (own, "kept"),
    ("kept", "again.lerobot"),
    ("again.lerobot", "back"),
  ):
    verify_conversion(source, made)
  pixels = dict(decode_images=True)
  convert.convert("kept", "pixels", **pixels, format="store")
  pixels = store.EpisodeStore("pixels")
  assert pixels.spec[CAMERA].data_format is None
  np.testing.assert_array_equal(pixels.episode(1)[CAMERA], want[1][CAMERA])
  with monkeypatch.context() as patched:
    patched.setattr(videos, "cut_video", lambda *args: None)
    report = convert.convert(own, "anew", keep_videos=True)
  assert f"{CAMERA}: videos that begin with no key frame" in report.notes[-1]
  anew = store.EpisodeStore("anew").episode(1)[CAMERA].astype(int)
  assert 0 < np.abs(anew - want[1][CAMERA]).mean() < 8


def test_written_folder_has_what_lerobot_reads(own):
  """What its reader looks at, and an image of a file's parts."""
  info = json.loads(pathlib.Path(own, "meta/info.json").read_text())
  assert (info["codebase_version"], info["fps"], info["robot_type"]) == (
    "v3.0",
    10,
    None,
  )
  assert list(info["features"]) == [
    *(CAMERA, "observation.state", "action", "reward"),
    *("timestamp", "frame_index", "episode_index", "index", "task_index"),
  ]
  assert info["features"][CAMERA]["info"]["video.codec"] == "h264"
  tasks = pq.read_table(f"{own}/meta/tasks.parquet")
  described = json.loads(tasks.schema.metadata[b"pandas"])
  assert described["index_columns"] == ["task"]
  assert tasks["task"].to_pylist() == [
    "pick up the cube",
    "put it in the bin",
    "öffnen",
  ]
  rows = pq.read_table(f"{own}/data/chunk-000/file-000.parquet")
  assert rows.column_names == list(info["features"])[1:]
  assert rows.schema.field("action").type == pa.list_(pa.float64(), 2)
  assert rows["index"].to_pylist() == list(range(14))
  assert rows["task_index"].to_pylist() == [0] * 3 + [1] * 6 + [0] + [2] * 4
  episodes = pq.read_table(
    f"{own}/meta/episodes/chunk-000/file-000.parquet"
  ).to_pylist()
  assert [e["dataset_from_index"] for e in episodes] == [0, 3, 9, 10]
  assert [e[f"videos/{CAMERA}/from_timestamp"] for e in episodes] == [0, 0.3, 0.9, 1]


def test_statistics(own):
  stats = json.loads(pathlib.Path(own, "meta/stats.json").read_text())
  every = [sets.episode(number) for number in range(len(sets.LENGTHS))]
  action = np.concatenate([episode["action"] for episode in every])
  want = {"min": action.min(0), "mean": action.mean(0), "std": action.std(0)}
  want["q90"] = np.quantile(action, 0.9, 0)
  for name, value in want.items():
    np.testing.assert_allclose(stats["action"][name], value, rtol=1e-12)
  pixels = np.concatenate([episode[CAMERA] for episode in every]) / 255
  want = {"max": pixels.max((0, 1, 2)), "std": pixels.std((0, 1, 2))}
  want["q50"] = np.quantile(pixels, 0.5, (0, 1, 2), method="inverted_cdf")
  for name, value in want.items():
    np.testing.assert_allclose(np.ravel(stats[CAMERA][name]), value, rtol=1e-9)
  assert stats["action"]["count"] == stats[CAMERA]["count"] == [14]
  first = pq.read_table(f"{own}/meta/episodes/chunk-000/file-000.parquet").to_pylist()[
    0
  ]
  np.testing.assert_allclose(first["stats/action/q10"], np.quantile(action[:3], 0.1, 0))


def test_every_kind_of_value(data):
  """Pixels as PNG, encoded images, arrays, text, what is of an episode: exactly."""
  spec = {
    "a/pixels": Spec((7, 6, 3), tf.uint8, "p", is_sequence=True),
    "a/jpeg": Spec((8, 6, 3), tf.uint8, "j", is_sequence=True, data_format="jpeg"),
    "matrix": Spec((2, 3), tf.float16, "m", is_sequence=True),
    "one": Spec((1,), tf.int32, "o", is_sequence=True),
    "flag": Spec((), tf.bool, "f", is_sequence=True),
    "note": Spec((), tf.string, "n", is_sequence=True),
    "goal": Spec((2,), tf.uint64, "g"),
    "meta/language_instruction": Spec((), tf.string, "l"),
  }
  rng = np.random.default_rng(0)

  def values(length):
    image = rng.integers(0, 256, (length, 8, 6, 3)).astype(np.uint8)
    return {
      "a/pixels": image[:, :7],
      "a/jpeg": data.objects([encode_image(i, "jpeg") for i in image], (length,)),
      "matrix": rng.normal(size=(length, 2, 3)).astype(np.float16),
      "one": np.arange(length, dtype=np.int32)[:, None],
      "flag": np.arange(length) % 2 == 0,
      "note": data.objects([b"x" * i for i in range(length)], (length,)),
      "goal": np.array([1, 2**64 - 1], np.uint64),
      "meta/language_instruction": data.objects(["grün".encode()], ()),
    }

  want = [values(3), values(1)]
  with store.EpisodeStore.create("s", spec, {"lerobot": {"fps": 12.5}}) as writer:
    for episode in want:
      writer.append_episode(episode)
  convert.convert("s", "out.lerobot")
  convert.convert("out.lerobot", "back")
  data.assert_episodes("back", want)
  assert (
    store.EpisodeStore("back").spec.to_json() == store.EpisodeStore("s").spec.to_json()
  )
  folder = LeRobotFolder("out.lerobot")
  assert (folder.tasks, folder.fps) == (["grün"], 12.5)
  assert folder.spec["a.pixels"].data_format == "png"


def test_pixels_are_kept_exactly_as_png(own, data):
  convert.convert(f"{own}.store", "out.lerobot", fps=10, video_codec="png")
  convert.convert("out.lerobot", "back")
  data.assert_episodes("back", [sets.episode(i) for i in range(len(sets.LENGTHS))])


def test_failure_leaves_nothing(own, monkeypatch):
  """The dataset appears at the end, and is that of an uninterrupted conversion."""
  sync_tree, is_full = files.sync_tree, True

  def fail(folder):
    if is_full:
      raise OSError("the disk is full")
    sync_tree(folder)

  monkeypatch.setattr(files, "sync_tree", fail)
  options = dict(fps=10, video_codec="libx264", video_gop=4)
  with pytest.raises(OSError, match="disk is full"):
    convert.convert(f"{own}.store", "out.lerobot", **options)
  assert not glob.glob("out.lerobot*")
  is_full = False
  convert.convert(f"{own}.store", "out.lerobot", **options)
  paths = [path for path in pathlib.Path(own).rglob("*") if path.is_file()]
  assert len(paths) == 7
  for path in paths:
    other = pathlib.Path("out.lerobot", path.relative_to(own))
    assert other.read_bytes() == path.read_bytes(), path


def test_several_files(own, monkeypatch):
  from t2r_seq.formats import lerobot_writer as lerobot_target

  monkeypatch.setattr(lerobot_target, "_DATA_MB", 1e-5)
  monkeypatch.setattr(lerobot_target, "_VIDEO_MB", 1e-5)
  monkeypatch.setattr(lerobot_target, "_CHUNK_FILES", 3)
  report = convert.convert(
    f"{own}.store", "out.lerobot", fps=10, video_codec="libx264", video_gop=4
  )
  assert os.path.exists(f"out.lerobot/videos/{CAMERA}/chunk-001/file-000.mp4")
  assert os.path.exists("out.lerobot/data/chunk-001/file-000.parquet")
  assert report.num_episodes == 4
  for number in range(4):
    whole, parted = (read(f, number, CAMERA)[CAMERA] for f in (own, "out.lerobot"))
    np.testing.assert_array_equal(whole, parted)


REFUSED = {
  "no rate": (dict(), {}, r"expected a number of steps per second.*--fps"),
  "no finite rate": (dict(fps=float("inf")), {}, "steps per second, got inf"),
  "no codec": (
    dict(fps=5, video_codec="libsvtav"),
    {},
    r"codec.*Did you mean 'libsvtav1'",
  ),
  "no gop": (dict(fps=5, video_gop=0), {}, "gop: expected an integer of at least 1"),
  "index": (
    dict(fps=5),
    {"index": Spec((), tf.int64, "i", is_sequence=True)},
    "index: expected another path than LeRobot's own.*--drop index",
  ),
  "one key": (
    dict(fps=5),
    {
      "reward": Spec((), tf.float32),
      "a/b": Spec((), tf.int8),
      "a.b": Spec((), tf.int8),
    },
    "a.b: expected paths that differ where / is ., got the key of a/b",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_destinations(name):
  options, changes, match = REFUSED[name]
  spec = {**sets.SPEC, **changes}

  def add(values):
    length = len(values["reward"])
    for path in changes:
      leaf = spec[path]
      shape = (length,) * leaf.is_sequence
      values[path] = np.zeros(shape, leaf.dtype.as_numpy_dtype)
    return values

  sets.make_store("s", spec, change=add)
  with pytest.raises(errors.SpecError, match=match):
    convert.convert("s", "out.lerobot", **options)
  assert not os.path.exists("out.lerobot")


def change_rows(name, key, change):
  table = pq.read_table(name)
  values = np.array(table[key].to_pylist())
  change(values)
  index = table.column_names.index(key)
  column = pa.array(values.tolist(), table.schema.field(key).type)
  pq.write_table(table.set_column(index, table.schema.field(key), column), name)


def cut(name):
  data = pathlib.Path(name).read_bytes()
  pathlib.Path(name).write_bytes(data[: len(data) // 2])


def move_frames(_):
  change_rows(EPISODES, f"videos/{CAMERA}/from_timestamp", lambda v: v.__iadd__(0.03))


DAMAGES = {
  "keys that are missing": (
    lambda f: sets.edit_json(f"{f}/meta/info.json", fps=None),
    r"info.json: expected the keys \[fps\], got none of them",
  ),
  "no episodes": (
    lambda f: shutil.rmtree(f"{f}/meta/episodes"),
    r"own/meta/episodes: expected parquet files.*was not finished",
  ),
  "no rows": (
    lambda f: os.remove(ROWS),
    r"file-000.parquet: episode 0: expected a file, got none",
  ),
  "a video that was cut": (
    lambda f: cut(VIDEO),
    rf"file-000.mp4: episode 0: {CAMERA}: expected a video that can be decoded, got an",
  ),
  "no video in it": (
    lambda f: pathlib.Path(VIDEO).write_bytes(b"\1" * 5000),
    rf"file-000.mp4: episode 0: {CAMERA}: expected a video that can be decoded, got an",
  ),
  "rows of another episode": (
    lambda f: change_rows(ROWS, "episode_index", lambda v: v.__setitem__(4, 2)),
    r"parquet: episode 1: episode_index: expected 1 at step 1, got 2",
  ),
  "rows in another order": (
    lambda f: change_rows(ROWS, "frame_index", lambda v: v.__setitem__(1, 2)),
    r"parquet: episode 0: frame_index: expected 1 at step 1, got 2",
  ),
  "a task that is not there": (
    lambda f: change_rows(ROWS, "task_index", lambda v: v.__setitem__(3, 7)),
    r"parquet: episode 1: task_index: expected a number below 3.*at step 0, got 7",
  ),
  "frames elsewhere": (
    move_frames,
    r"episode 0: .*: expected the frame of step 0 at 0.030000 s, got the nearest one"
    r" -0.030000 s from there",
  ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damages(name, copy):
  """One error each, with file, episode and key."""
  damage, match = DAMAGES[name]
  damage(copy)
  with pytest.raises(errors.ConversionError, match=match):
    convert.convert(copy, "out")


SHAPES = {
  "another dtype": (
    "action",
    {"dtype": "float32", "shape": [2]},
    r"got \(2,\) float64",
  ),
  "another shape": (
    "action",
    {"dtype": "float64", "shape": [3]},
    r"got \(2,\) float64",
  ),
  "a size of frames": (
    CAMERA,
    {"dtype": "video", "shape": [64, 48, 3]},
    r"expected frames of \(64, 48, 3\), as meta/info.json says, got \(48, 64, 3\)",
  ),
  "a key too many": (
    "more",
    {"dtype": "float32", "shape": [1]},
    "expected a column of",
  ),
  "no numbers": (
    "more",
    {"dtype": "floaty", "shape": [1]},
    "a dtype that TensorFlow has",
  ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_rows_that_disagree_with_the_description(name, copy):
  key, described, match = SHAPES[name]
  info = json.loads(pathlib.Path(copy, "meta/info.json").read_text())
  features = {**info["features"], key: described}
  sets.edit_json(f"{copy}/meta/info.json", features=features)
  with pytest.raises(errors.ConversionError, match=match) as raised:
    convert.convert(copy, "out")
  assert key in str(raised.value)


def test_data_path_outside_the_folder_is_refused(copy):
  sets.edit_json(
    f"{copy}/meta/info.json", data_path="../{chunk_index}{file_index}.parquet"
  )
  with pytest.raises(errors.ConversionError, match="data_path: expected files of this"):
    read(copy, 0, "action")


def test_delta_time_offsets():
  assert delta_time_offsets([-0.0667, 0, 0.1333], 15) == (-1, 0, 2)
  with pytest.raises(
    errors.SpecError, match=r"multiples of 1/15 s, got 0.1. The nearest"
  ):
    delta_time_offsets([0.1], 15)


NANOSECONDS = np.array([0, 33, 66, 101, 133]) * 10**6
RATES = {
  "metadata of LeRobot": ({"lerobot": {"fps": 30}}, {}, "its metadata have"),
  "metadata": ({"fps": 30}, {}, "its metadata have"),
  "clocks": (
    {},
    {"clocks/arm": NANOSECONDS, "clocks/slow": NANOSECONDS[[0, 0, 0, 3, 3]]},
    "the time stamps of clocks/arm have",
  ),
  "seconds": ({}, {"obs/timestamp": NANOSECONDS / 1e9}, "of obs/timestamp have"),
  "milliseconds": ({}, {"time_ms": NANOSECONDS // 10**6}, "of time_ms have"),
}


def make_timed_store(metadata, columns):
  values = {"action": np.zeros((5, 2), np.float32), **columns}
  spec = {
    path: Spec(v.shape[1:], tf.as_dtype(v.dtype), is_sequence=True)
    for path, v in values.items()
  }
  with store.EpisodeStore.create("s", spec, metadata) as writer:
    writer.append_episode({path: v[:1] for path, v in values.items()})
    writer.append_episode(values)


@pytest.mark.parametrize("name", RATES)
def test_another_rate_than_that_of_the_data_is_refused(name):
  metadata, columns, match = RATES[name]
  make_timed_store(metadata, columns)
  match = rf"fps: expected 30(\.3)? steps per second, as .*{match}, got 15\. fps names"
  with pytest.raises(errors.ConversionError, match=match):
    convert.convert("s", "out.lerobot", fps=15)
  assert not os.path.exists("out.lerobot") and not os.path.exists("out.lerobot.conver")
  convert.convert("s", "out.lerobot", fps=30)
  assert LeRobotFolder("out.lerobot").fps == 30


@pytest.mark.parametrize("name", ["out.zarr", "out.hdf5", "out.tfrecord"])
def test_other_formats_are_not_resampled_either(name):
  make_timed_store({"fps": 30}, {})
  with pytest.raises(errors.ConversionError, match="fps: expected 30 steps per second"):
    convert.convert("s", name, fps=15)
