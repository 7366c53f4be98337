"""LeRobot's cameras: depth in its units, whose frames steps show, and clocks."""

from __future__ import annotations

import fractions
import json
import os
import pathlib
import shutil

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, specs, store
from t2r_seq.cli import main
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes
from t2r_seq.formats.lerobot_folder import LeRobotFolder
from t2r_seq.store import videos
from tests.convert import lerobot_sets as sets

Spec = specs.ExtendedTensorSpec
CAMERA, LENGTHS, FPS = sets.CAMERA, sets.LENGTHS, sets.FPS
NUM_STEPS, STARTS = sum(LENGTHS), np.cumsum([0, *LENGTHS])


def values_of(episodes):
  return [episode.values for episode in episodes]


EPISODES = "own/meta/episodes/chunk-000/file-000.parquet"
ROWS = "own/data/chunk-000/file-000.parquet"
VIDEO = f"own/videos/{CAMERA}/chunk-000/file-000.mp4"
DEPTH = "observation.images.depth"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
  """A dataset of our own writer, as another writer would have left it."""
  here = os.getcwd()
  os.chdir(tmp_path_factory.mktemp("own"))
  folder = os.path.abspath(sets.make_folder("own.lerobot"))
  os.remove("own.lerobot/meta/t2r_seq.json")
  os.remove("own.lerobot/meta/stats.json")
  os.chdir(here)
  return folder


@pytest.fixture
def copy(own):
  shutil.copytree(own, "own")
  return "own"


def change(name, **columns):
  """Replaces columns of a parquet file."""
  table = pq.read_table(name)
  for key, values in columns.items():
    field = table.schema.field(key)
    index = table.column_names.index(key)
    table = table.set_column(index, field, pa.array(list(values), field.type))
  pq.write_table(table, name)


def doctor(capsys, *argv):
  """Returns the exit status of `doctor`, and what it prints."""
  status = main(["doctor", "own", *argv])
  return status, " ".join(capsys.readouterr().out.split())


# Depth.

RANGE = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
CODES = (293 * np.arange(NUM_STEPS) + 5) % 4096


def logarithmic(codes):
  low, high = np.log(3.51), np.log(13.5)
  return np.exp(codes / 4095 * (high - low) + low) - 3.5


def write_depth(codes, pix_fmt, codec, is_raw=False):
  """Writes a video of codes, one for all pixels of a frame."""
  folder = f"own/videos/{DEPTH}/chunk-000"
  os.makedirs(folder)
  options = {"libx265": {"x265-params": "lossless=1:log-level=error"}}.get(codec, {})
  kind = "mp4" if codec == "libx265" else "matroska"
  with av.open(f"{folder}/file-000.mp4", "w", format=kind) as container:
    stream = container.add_stream(codec, FPS, options=options)
    stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
    for i, code in enumerate(codes):
      frame = av.VideoFrame(64, 48, pix_fmt)
      for plane in frame.planes:
        np.frombuffer(plane, np.uint8)[:] = 0
      dtype = np.uint8 if pix_fmt == "gray" else np.uint16
      luma = np.frombuffer(frame.planes[0], dtype).reshape(48, -1)
      luma[:, :64] = code
      frame.pts, frame.time_base = i, fractions.Fraction(1, FPS)
      container.mux(stream.encode(frame))
    container.mux(stream.encode())


def add_depth(codes, pix_fmt="gray12le", codec="libx265", shape=(48, 64, 1), info=None):
  """Adds a depth camera to the set, as LeRobot describes it."""
  write_depth(codes, pix_fmt, codec)
  described = {f"video.{name}": value for name, value in RANGE.items()}
  described = {"is_depth_map": True, **described} if info is None else info
  with open("own/meta/info.json") as file:
    features = json.load(file)["features"]
  features[DEPTH] = {"dtype": "video", "shape": list(shape), "info": described}
  sets.edit_json("own/meta/info.json", features=features)
  table = pq.read_table(EPISODES)
  for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp"):
    column = table[f"videos/{CAMERA}/{name}"]
    table = table.append_column(f"videos/{DEPTH}/{name}", column)
  pq.write_table(table, EPISODES)


LINEAR = {
  "video.is_depth_map": True,
  **{f"video.{k}": v for k, v in {**RANGE, "use_log": False}.items()},
}
VALUES = {
  "12 bits": ({}, CODES, logarithmic(CODES)),
  "12 bits of YUV": ({"pix_fmt": "yuv420p12le"}, CODES, logarithmic(CODES)),
  "12 bits in 16": (
    {"pix_fmt": "gray16le", "codec": "ffv1"},
    CODES,
    logarithmic(CODES),
  ),
  "10 bits": (
    {"pix_fmt": "gray10le"},
    CODES // 4,
    logarithmic(np.rint(CODES // 4 * (4095 / 1023))),
  ),
  "linear": ({"info": LINEAR}, CODES, 0.01 + CODES / 4095 * 9.99),
}


@pytest.mark.parametrize("name", VALUES)
def test_depth_is_read_in_metres_and_millimetres(copy, name):
  options, codes, want = VALUES[name]
  add_depth(codes, **options)
  found = [values[DEPTH] for values in values_of(open_episodes("own"))]
  assert [(v.dtype, v.shape[1:]) for v in found] == [(np.float32, (48, 64, 1))] * 4
  pixels = np.concatenate(found)
  assert (pixels == pixels[:, :1, :1]).all()
  np.testing.assert_allclose(pixels[:, 0, 0, 0], want, atol=1e-5)
  millimetres = np.rint(1000 * want)
  for dtype, expected, atol in ((tf.float32, want, 1e-5), (tf.uint16, millimetres, 1)):
    generator = data.LeRobotInputGenerator("own", batch_size=NUM_STEPS)
    generator.set_feature_specifications({"depth": Spec((48, 64, 1), dtype, DEPTH)})
    generator.set_label_specifications({})
    batch = next(iter(generator.create_dataset("eval")))[0]["depth"]
    assert batch.dtype == dtype
    np.testing.assert_allclose(batch[:, 40, 60, 0], expected, atol=atol)
  twice = open_episodes("own").cast({DEPTH: "uint16"}).cast({"action": "float32"})
  values = twice.read(0)
  assert (values[DEPTH].dtype, values["action"].dtype) == (np.uint16, np.float32)


def test_depth_is_stored_and_written_again(copy):
  """As values, and as the video that it is, with its quantiser."""
  add_depth(CODES)
  want = [values[DEPTH] for values in values_of(open_episodes("own"))]
  convert.convert("own", "values")
  convert.convert("own", "kept", keep_videos=True)
  kept = store.EpisodeStore("kept")
  how = kept.columns[DEPTH].video
  assert (how.depth, how.unit) == (videos.DepthQuantizer(**RANGE), "m")
  notes = open_episodes("own").notes
  assert f"[{DEPTH}]: depth is float32 in metres." in notes
  assert store.EpisodeStore("values").spec[DEPTH].data_format is None
  convert.convert("kept", "again.lerobot")
  for source, made in (("own", "values"), ("own", "kept"), ("kept", "again.lerobot")):
    verify_conversion(source, made)
  described = json.loads(pathlib.Path("again.lerobot/meta/info.json").read_text())
  info = described["features"][DEPTH]["info"]
  assert info["is_depth_map"] and info["video.depth_max"] == 10
  os.remove("again.lerobot/meta/t2r_seq.json")
  for number, values in enumerate(want):
    for place in ("values", "kept"):
      got = store.EpisodeStore(place).episode(number)[DEPTH]
      np.testing.assert_array_equal(got, values)
    read = LeRobotFolder("again.lerobot").read(number, [DEPTH])
    np.testing.assert_array_equal(read[DEPTH], values)
  stats = json.loads(pathlib.Path("again.lerobot/meta/stats.json").read_text())
  every = np.concatenate(want).astype(np.float64)
  np.testing.assert_allclose(np.ravel(stats[DEPTH]["mean"]), every.mean(), rtol=1e-6)
  np.testing.assert_allclose(np.ravel(stats[DEPTH]["max"]), every.max(), rtol=1e-6)


def test_store_keeps_depth_as_a_video():
  spec = {"depth": Spec((32, 48, 1), tf.float32, is_sequence=True, data_format="mp4")}
  options = videos.VideoOptions(depth=videos.DepthQuantizer())
  depth = np.linspace(0.01, 10, 5 * 1536, dtype=np.float32).reshape(5, 32, 48, 1)
  with store.EpisodeStore.create("s", spec, videos=options) as writer:
    writer.append_episode({"depth": depth})
  with store.EpisodeStore.append("s", spec=spec) as writer:
    writer.append_episode({"depth": depth[:2]})
    with pytest.raises(errors.SpecError, match="expected finite depth, got NaN"):
      writer.append_episode({"depth": np.full((1, 32, 48, 1), np.nan, np.float32)})
  # Half a step of the codes, the largest at 10 m.
  got = store.EpisodeStore("s").episode(0)["depth"]
  np.testing.assert_allclose(got, depth, atol=2.3e-3)


REFUSED = {
  "another size": (
    {"shape": (64, 48, 1)},
    r"expected frames of \(64, 48, 1\), as meta/info.json says, got \(48, 64, 1\)",
  ),
  "no quantiser": (
    {"info": {"is_depth_map": True, "video.depth_min": 0.01}},
    r"info.json: observation.images.depth: expected \[video.depth_max, video.shift, "
    r"video.use_log\] in the info of a depth map, got none of them.*--drop observation",
  ),
  "an empty range": (
    {"info": {**LINEAR, "video.depth_max": 0.0}},
    "expected numbers with depth_min < depth_max, got depth_min=0.01, depth_max=0.0",
  ),
  "more than 12 bits": (
    {"pix_fmt": "gray16le", "codec": "ffv1", "codes": CODES * 16},
    "expected depth codes below 4096, got 14144 of gray16le",
  ),
  "colours": (
    {"pix_fmt": "bgr0", "codec": "ffv1"},
    "expected grey or YUV frames of depth codes, got bgr0",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_depth_that_cannot_be_read(copy, name):
  options, match = REFUSED[name]
  if options.get("pix_fmt") == "bgr0":
    add_depth([], pix_fmt="gray12le", **{"info": None})
    write_colours()
  else:
    add_depth(**{"codes": CODES, **options})
  with pytest.raises(errors.ConversionError, match=match):
    LeRobotFolder("own").read(1, [DEPTH])
  # What else there is can be read.
  assert main(["convert", "own", "made", "--drop", DEPTH]) == 0


def write_colours():
  with av.open(
    f"own/videos/{DEPTH}/chunk-000/file-000.mp4", "w", format="matroska"
  ) as container:
    stream = container.add_stream("ffv1", FPS)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "bgr0"
    for _ in range(NUM_STEPS):
      pixels = np.zeros((48, 64, 3), np.uint8)
      container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
    container.mux(stream.encode())


def test_spec_of_pictures_does_not_read_depth(copy):
  add_depth(CODES)
  generator = data.LeRobotInputGenerator("own", batch_size=2)
  generator.set_feature_specifications({"depth": Spec((48, 64, 1), tf.uint8, DEPTH)})
  generator.set_label_specifications({})
  match = (
    r"depth: expected depth of 12 bits, got \(48, 64, 1\) uint8. Declare float32 for "
    "metres, or uint16 for millimetres."
  )
  with pytest.raises(errors.SpecError, match=match):
    generator.create_dataset("eval")


# Spans of video files.


def spans(copy, shift_from, shift_to=None):
  """Moves the spans of the episodes by some frames."""
  starts, ends = STARTS[:-1] / FPS, STARTS[1:] / FPS
  shift_to = shift_from if shift_to is None else shift_to
  change(
    EPISODES,
    **{
      f"videos/{CAMERA}/from_timestamp": starts + np.array(shift_from) / FPS,
      f"videos/{CAMERA}/to_timestamp": ends + np.array(shift_to) / FPS,
    },
  )


SPANS = {
  "a frame early": (
    ([0, 0, -1, 0],),
    2,
    r"episode 2: .*top: expected a part of the video that no other episode has, got "
    r"0.8000 s to 0.9000 s, and 0.3000 s to 0.9000 s of episode 1. Correct from_timest",
  ),
  "its neighbour": (([0, 0, -1, 0],), 1, "and 0.8000 s to 0.9000 s of episode 2"),
  "its start alone": (([0, -1, 0, 0], [0, 0, 0, 0]), 1, "that no other episode"),
  "the first of them is late": (([1, 0, 0, 0],), 0, "of episode 1"),
  "it ends late": (
    ([0, 0, 0, 0], [0, 0, 0, 1]),
    3,
    r"expected 0.4000 s of the video, for 4 steps, got 0.5000 s, from 1.0000 s to "
    r"1.5000 s. Correct .*--frame_tolerance SECONDS",
  ),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans_of_another_episodes_frames_are_refused(copy, name, capsys):
  shifts, episode, match = SPANS[name]
  spans(copy, *shifts)
  with pytest.raises(errors.ConversionError, match=match):
    LeRobotFolder("own").read(episode, [CAMERA])
  status, out = doctor(capsys)
  assert status == 1 and f"episode {episode}: {CAMERA}: expected" in out
  # What has no video is read.
  assert len(LeRobotFolder("own").read(episode, ["action"])["action"])


def test_tolerance_allows_a_span_that_is_longer(copy):
  spans(copy, [0] * 4, [0, 0, 0, 1])
  folder = LeRobotFolder("own", frame_tolerance=0.11)
  want = LeRobotFolder("own", "index", 0.11).read(3, [CAMERA])[CAMERA]
  np.testing.assert_array_equal(folder.read(3, [CAMERA])[CAMERA], want)


def test_doctor_names_frames_that_no_step_has(copy, capsys):
  assert doctor(capsys)[0] == 0
  frames = [*np.concatenate([sets.frames(e) for e in range(4)]), sets.frames(0)[0]]
  videos.write_frames(VIDEO, frames, FPS, videos.VideoEncoding("libx264", 4))
  status, out = doctor(capsys)
  assert status == 1
  assert f"file-000.mp4: {CAMERA}: expected 14 frames, one for each step of its" in out
  assert "episodes, got 15." in out


def test_doctor_names_nan(copy, capsys):
  values = np.concatenate([sets.episode(e)["observation.state"] for e in range(4)])
  values[5, 1] = np.nan
  change(ROWS, **{"observation.state": values.tolist()})
  status, out = doctor(capsys)
  assert status == 1
  want = "episode 1 of own: observation.state: expected numbers, got NaN at step 2, "
  assert f"{want}value 1, 1 of 18. To accept it: allow_nan=True, --allow_nan." in out
  assert doctor(capsys, "--allow_nan")[0] == 0


# Clocks.

GRID = np.concatenate([np.arange(n) for n in LENGTHS]) / FPS
JITTER = np.random.default_rng(0).uniform(-0.03, 0.03, NUM_STEPS)
STAMPS = {
  "jitter": GRID + JITTER,
  "a rate of 7 a second": GRID * FPS / 7,
  "seconds since 1970": GRID + 1000.0,
}


@pytest.mark.parametrize("name", STAMPS)
def test_time_stamps_of_a_clock_are_kept(copy, name):
  stamps = STAMPS[name].astype(np.float32)
  change(ROWS, timestamp=stamps)
  source = open_episodes("own", drop=(CAMERA,))
  assert (
    "timestamp is kept: its values are not multiples of 1 / fps" in source.notes[-1]
  )
  assert "[episode_index, frame_index, index, task_index] are left" in source.notes[0]
  found = np.concatenate([episode.values["timestamp"] for episode in source])
  np.testing.assert_array_equal(found, stamps)


def test_ordinary_time_stamps_are_left_out(copy):
  source = open_episodes("own")
  assert "timestamp" not in source.spec and len(source.notes) == 1


@pytest.mark.parametrize("name", STAMPS)
def test_frames_by_index_ignore_the_clock(copy, name, capsys):
  want = [values[CAMERA] for values in values_of(open_episodes("own"))]
  change(ROWS, timestamp=STAMPS[name])
  with pytest.raises(
    errors.ConversionError, match=r"--frames_by index; or allow the ne"
  ):
    values_of(open_episodes("own"))
  status, out = doctor(capsys)
  assert status == 1 and "Find frame i at step i: frames_by='index'" in out
  assert doctor(capsys, "--frames_by", "index")[0] == 0
  assert main(["convert", "own", "made", "--frames_by", "index"]) == 0
  verify_conversion("own", "made")
  for number, frames in enumerate(want):
    got = store.EpisodeStore("made").episode(number)
    np.testing.assert_array_equal(got[CAMERA], frames)
  generator = data.LeRobotInputGenerator("own", NUM_STEPS, frames_by="index")
  generator.set_feature_specifications({"image": Spec((48, 64, 3), tf.uint8, CAMERA)})
  generator.set_label_specifications({})
  batch = next(iter(generator.create_dataset("eval")))[0]["image"]
  np.testing.assert_array_equal(batch, np.concatenate(want))


def test_videos_of_twice_the_rate_of_the_steps(copy, capsys):
  """Time stamps that skip every other frame find theirs."""
  frames = np.concatenate([sets.frames(e) for e in range(4)])
  doubled = np.repeat(frames, 2, axis=0)
  doubled[1::2] = 255 - doubled[1::2]
  videos.write_frames(VIDEO, doubled, 2 * FPS, videos.VideoEncoding("libx264", 1, 10))
  sets.edit_json("own/meta/info.json", fps=2 * FPS)
  for number, values in enumerate(values_of(open_episodes("own"))):
    assert np.abs(values[CAMERA].astype(int) - sets.frames(number)).mean() < 8
  assert doctor(capsys)[0] == 0


def test_tolerance_shows_the_nearest_frame(copy):
  want = [values[CAMERA] for values in values_of(open_episodes("own"))]
  change(ROWS, timestamp=STAMPS["jitter"])
  folder = LeRobotFolder("own", frame_tolerance=0.04)
  for number, frames in enumerate(want):
    np.testing.assert_array_equal(folder.read(number, [CAMERA])[CAMERA], frames)
    for step in range(len(frames)):
      found = folder.frames(number, CAMERA, step, step + 1)
      np.testing.assert_array_equal(found[0], frames[step])


def test_nearest_frame_is_of_the_same_episode(copy):
  """A last stamp that is late shows the last frame of its episode, not the next one."""
  want = [values[CAMERA] for values in values_of(open_episodes("own"))]
  late = GRID.copy()
  late[STARTS[1] - 1] += 0.08
  change(ROWS, timestamp=late)
  folder = LeRobotFolder("own", frame_tolerance=0.09)
  np.testing.assert_array_equal(folder.read(0, [CAMERA])[CAMERA], want[0])


def test_clocks_go_to_a_store_and_back(copy):
  stamps = STAMPS["jitter"].astype(np.float32)
  change(ROWS, timestamp=stamps)
  by_index = dict(frames_by="index")
  convert.convert("own", "made", **by_index)
  convert.convert("made", "again.lerobot", video_codec="libx264")
  verify_conversion("made", "again.lerobot")
  rows = pq.read_table("again.lerobot/data/chunk-000/file-000.parquet")
  np.testing.assert_array_equal(rows["timestamp"], stamps)
  convert.convert("again.lerobot", "back")
  before, after = (store.EpisodeStore(name) for name in ("made", "back"))
  assert before.spec.to_json() == after.spec.to_json()
  np.testing.assert_array_equal(
    after.episode(1)["timestamp"], stamps[STARTS[1] : STARTS[2]]
  )


OPTIONS = {
  "a way": (
    dict(frames_by="indx"),
    r"frames_by: expected one of .*Did you mean 'index'",
  ),
  "a tolerance": (
    dict(frame_tolerance=-1),
    "frame_tolerance: expected seconds, got -1",
  ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_invalid(own, name):
  options, match = OPTIONS[name]
  for make in (
    lambda: LeRobotFolder(own, **options),
    lambda: open_episodes(own, **options),
    lambda: data.LeRobotInputGenerator(own, **options),
  ):
    with pytest.raises(errors.SpecError, match=match):
      make()


@pytest.mark.parametrize("stamp", [0.02, np.nan], ids=["back", "NaN"])
def test_stamps_that_do_not_rise_are_named(copy, stamp):
  stamps = GRID.copy()
  stamps[5] = stamp
  change(ROWS, timestamp=stamps)
  match = (
    f"expected time stamps that do not run backwards.*{stamp:.6f} at step 2, after"
  )
  with pytest.raises(errors.ConversionError, match=match):
    LeRobotFolder("own").read(1, [CAMERA])
  # Found by index, they are values as others.
  assert len(LeRobotFolder("own", "index").read(1, [CAMERA])[CAMERA]) == 6
