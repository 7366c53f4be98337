"""Recordings of ROS 2, written by the format's own writer."""

from __future__ import annotations

import json
import os
import pathlib
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, specs, store
from t2r_seq.cli.main import main
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes
from t2r_seq.specs.packing import encode_image

writer = pytest.importorskip("mcap_ros2.writer")
mcap_writer = pytest.importorskip("mcap.writer")


def values_of(episodes):
  return [episode.values for episode in episodes]


HEADER = """std_msgs/Header header
{fields}
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
DEFINITIONS = {
  "sensor_msgs/msg/JointState": HEADER.format(
    fields="string[] name\nfloat64[] position  # in radians\nfloat64[] velocity"
  ),
  "sensor_msgs/msg/CompressedImage": HEADER.format(
    fields="string format\nuint8[] data"
  ),
  "sensor_msgs/msg/Image": HEADER.format(
    fields="uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\n"
    "uint32 step\nuint8[] data"
  ),
  "lab/msg/Goal": "uint8 OPEN=1\nPoint place\nfloat32 grip\nbool is_set\nstring words\n"
  + "=" * 80
  + "\nMSG: lab/Point\nfloat64 x\nfloat64 y\nfloat64 z",
  "std_msgs/msg/Empty": "",
}
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (3, 8, 6, 3)).astype(np.uint8)
JPEGS = [encode_image(image, "jpeg", 90) for image in IMAGES]
MS = 10**6
# Of the camera three messages, of the arm six: two of them before the first image.
CAMERA_MS, ARM_MS, GOAL_MS = (100, 200, 300), (60, 110, 160, 199, 201, 290), (95, 260)


def header(ms):
  return {"stamp": {"sec": 0, "nanosec": ms * MS}, "frame_id": "f"}


def joints(ms, names=("a", "b")):
  values = [float(ms), -float(ms)]
  return {
    "header": header(ms + 2),
    "name": list(names),
    "position": values,
    "velocity": [],
  }


def compressed(data, ms, kind="jpeg"):
  return {"header": header(ms), "format": kind, "data": data}


def raw(pixels, ms, encoding, padding=0, is_big=False):
  rows = pixels.astype(pixels.dtype.newbyteorder(">")) if is_big else pixels
  rows = rows.reshape(len(pixels), -1).view(np.uint8)
  rows = np.pad(rows, [(0, 0), (0, padding)], constant_values=7)
  size = {"height": pixels.shape[0], "width": pixels.shape[1], "step": rows.shape[1]}
  data = {"encoding": encoding, "is_bigendian": int(is_big), "data": rows.tobytes()}
  return {"header": header(ms), **size, **data}


def goal(ms):
  place = {"x": ms, "y": 2.0, "z": 3.0}
  return {"place": place, "grip": ms / 4, "is_set": True, "words": f"go {ms}"}


TOPICS = {
  "/arm": ("sensor_msgs/msg/JointState", ARM_MS, joints),
  "/camera": (
    "sensor_msgs/msg/CompressedImage",
    CAMERA_MS,
    lambda ms: compressed(JPEGS[ms // 100 - 1], ms),
  ),
  "/raw": (
    "sensor_msgs/msg/Image",
    CAMERA_MS,
    lambda ms: raw(IMAGES[ms // 100 - 1][..., ::-1], ms, "bgr8", padding=5),
  ),
  "/depth": (
    "sensor_msgs/msg/Image",
    CAMERA_MS,
    lambda ms: raw(IMAGES[0, ..., :1].astype(np.uint16) * ms, ms, "16UC1", 2, True),
  ),
  "/goal": ("lab/msg/Goal", GOAL_MS, goal),
}
PATHS = {
  "image": "/camera",
  "pixels": "/raw",
  "depth": "/depth",
  "position": "/arm:position",
  "joints": "/arm:name",
  "place": "/goal:place",
  "height": "/goal:place.z",
  "grip": "/goal:grip",
  "is_set": "/goal:is_set",
  "words": "/goal:words",
}
CONTRACT = {"clock": "/camera", "paths": PATHS}


def make_bag(path="demo.mcap", topics=(), span=(0, 999), changes=(), encode=None):
  """Writes a recording, or the part of it within some milliseconds."""
  with open(path, "wb") as file, writer.Writer(file, chunk_size=900) as bag:
    kinds = {name: bag.register_msgdef(name, DEFINITIONS[name]) for name in DEFINITIONS}
    sent = [
      (ms, topic, kind, make)
      for topic, (kind, times, make) in {**TOPICS, **dict(changes)}.items()
      for ms in times
      if (not topics or topic in topics) and span[0] <= ms < span[1]
    ]
    for ms, topic, kind, make in sorted(sent, key=lambda item: item[0]):
      bag.write_message(topic, kinds[kind], make(ms), ms * MS, (ms - 3) * MS)
  return path


def layout(**changes):
  pathlib.Path("layout.json").write_text(json.dumps({**CONTRACT, **changes}))
  return dict(layout="layout.json")


def read(path="demo.mcap", **changes):
  return values_of(open_episodes(path, **layout(**changes)))


def test_steps_show_the_last_messages_and_their_stamps():
  make_bag()
  report = convert.convert("demo.mcap", "s", **layout())
  assert report.source_format == "mcap"
  assert "The message farthest from its step is 0.105 s away: /goal" in report.notes[-1]
  opened = store.EpisodeStore("s")
  assert opened.episode_lengths.tolist() == [3]
  values = opened.episode(0)
  assert values["image"].tolist() == JPEGS
  np.testing.assert_array_equal(values["pixels"], IMAGES)
  want = IMAGES[:1, ..., :1] * np.asarray(CAMERA_MS).reshape(3, 1, 1, 1)
  np.testing.assert_array_equal(values["depth"], want.astype(np.uint16))
  shown = [60, 199, 290]
  np.testing.assert_array_equal(values["position"], [[t, -t] for t in shown])
  assert values["joints"].tolist() == [[b"a", b"b"]] * 3
  np.testing.assert_array_equal(values["place"], [[t, 2, 3] for t in (95, 95, 260)])
  np.testing.assert_array_equal(values["grip"], np.float32([23.75, 23.75, 65]))
  assert values["height"].tolist() == [3.0] * 3 and values["is_set"].all()
  assert values["words"].tolist() == [b"go 95", b"go 95", b"go 260"]
  assert opened.spec["depth"].dtype == tf.uint16
  for topic, want in (("arm", shown), ("camera", CAMERA_MS), ("goal", (95, 95, 260))):
    np.testing.assert_array_equal(values[f"clocks/{topic}"], np.asarray(want) * MS)
  known = opened.metadata["mcap"]
  assert known["layout"]["paths"] == PATHS and known["bags"] == ["demo.mcap"]
  assert known["names"] == {"position": ["a", "b"]}


ARM = {"position": "/arm:position"}
RESAMPLED = {
  "hold": ({"paths": ARM}, [60, 199, 290]),
  "nearest": ({"paths": ARM, "resample": "nearest"}, [110, 199, 290]),
  "nearest of a topic": (
    {"paths": ARM, "resample": {"/arm": "nearest"}},
    [110, 199, 290],
  ),
  # The arm's stamps are two milliseconds after the log.
  "their own stamps": ({"paths": ARM, "time": "header"}, [60, 160, 290]),
  "sent 3 ms earlier, both": ({"paths": ARM, "time": "publish"}, [60, 199, 290]),
  "a tolerance that is met": ({"paths": ARM, "tolerance": 0.041}, [60, 199, 290]),
  "its own clock": ({"paths": ARM, "clock": "/arm"}, list(ARM_MS)),
  "from the first goal on": (
    {"paths": {**ARM, "grip": "/goal:grip"}, "clock": "/arm"},
    list(ARM_MS[1:]),
  ),
}


@pytest.mark.parametrize("name", RESAMPLED)
def test_resampled(name):
  make_bag()
  contract, want = RESAMPLED[name]
  (values,) = read(**contract)
  assert values["position"][:, 0].tolist() == want


def test_topics_keep_their_clocks():
  """Every message is a value with its time; steps are those that all topics precede."""
  make_bag()
  options = {**layout(), "clocks": "own"}
  episodes = open_episodes("demo.mcap", **options)
  (own,), (held,) = values_of(episodes), read()
  assert episodes.clocks["position"] == episodes.clocks["clocks/arm"] == "clocks/arm"
  assert "image" not in episodes.clocks and "clocks/camera" not in episodes.clocks
  assert own["clocks/arm"].tolist() == [MS * ms for ms in ARM_MS]
  assert own["position"][:, 0].tolist() == [*ARM_MS]
  np.testing.assert_array_equal(own["image"], held["image"])
  convert.convert("demo.mcap", "own", **options)
  verify_conversion("demo.mcap", "own")
  assert open_episodes("own").clocks == episodes.clocks
  # Recordings train in place, as the store does.
  seconds = specs.Seconds(-0.05, 0.0)
  spec = specs.ExtendedTensorSpec((2, 2), tf.float64, "position", time_offsets=seconds)
  for source, opened in (("demo.mcap", options), ("own", {})):
    (batch,) = data.windows_of(
      source, {"position": spec}, mode="eval", batch_size=3, open_options=opened
    )
    shown = [[60, 60], [110, 199], [201, 290]]
    assert batch["position"][..., 0].numpy().tolist() == shown
  want = "write: one.lerobot: expected values of the steps, as lerobot has one clock.*"
  with pytest.raises(errors.SpecError, match=want + "resample='hold'"):
    convert.convert("own", "one.lerobot")
  convert.convert("own", "steps", resample="hold")
  (found,) = values_of(open_episodes("steps"))
  for path, value in held.items():
    np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_folder_of_recordings_and_one_in_parts():
  os.makedirs("bags/run_10")
  pathlib.Path("bags/run_10/metadata.yaml").write_text("rosbag2_bagfile_information:")
  make_bag("bags/run_10/run_10_0.mcap", span=(0, 150))
  make_bag("bags/run_10/run_10_1.mcap", span=(150, 999))
  make_bag("bags/run_2.mcap")
  source = open_episodes("bags", **layout())
  assert source.metadata["mcap"]["bags"] == ["run_2.mcap", "run_10"]
  first, second = values_of(source)
  assert sorted(first) == sorted(second)
  for path in first:  # Parts are one recording.
    np.testing.assert_array_equal(first[path], second[path])
  convert.convert("bags/run_10", "s", layout="layout.json", drop=("clocks", "pixels"))
  assert sorted(store.EpisodeStore("s").spec) == sorted({*PATHS} - {"pixels"})
  for command in ("inspect", "doctor"):
    assert main([command, "bags", "--layout", "layout.json"]) == 0


def test_depth_as_compressed_png():
  pixels = (IMAGES[0, ..., :1].astype(np.uint16) << 8) + 5
  data = tf.io.encode_png(pixels).numpy()
  made = compressed(b"\0" * 12 + data, 100, "16UC1; compressedDepth png")
  make_bag(
    changes={"/camera": ("sensor_msgs/msg/CompressedImage", (100,), lambda _: made)}
  )
  source = open_episodes("demo.mcap", **layout(paths={"d": "/camera"}))
  assert (source.spec["d"].dtype, source.spec["d"].data_format) == (tf.uint16, "png")
  (values,) = values_of(source)
  assert values["d"].tolist() == [data]


SCENE = np.full((8, 6, 3), (200, 0, 20), np.uint8)
DEEP = np.full((8, 6, 3), (50000, 0, 5000), np.uint16)
ALPHA = np.full((8, 6, 4), (200, 0, 20, 90), np.uint8)
BGR, BGRA = [2, 1, 0], [2, 1, 0, 3]
# What a camera sees, the order in which it was encoded, format and file format; the
# pixels that are read, and the encoding that is kept.
CHANNELS = {
  "plain": (SCENE, None, "jpeg", "jpeg", "jpeg"),
  "the usual": (SCENE, None, "rgb8; jpeg compressed bgr8", "jpeg", "jpeg"),
  "from BGR": (SCENE, None, "bgr8; jpeg compressed bgr8", "jpeg", "jpeg"),
  "RGB": (SCENE, BGR, "rgb8; jpeg compressed rgb8", "jpeg", "png"),
  "RGB of BGR": (SCENE, BGR, "bgr8; jpeg compressed rgb8", "jpeg", "png"),
  "RGB as PNG": (SCENE, BGR, "rgb8; png compressed rgb8", "png", "png"),
  "RGBA": (ALPHA, BGRA, "rgba8; png compressed rgba8", "png", "png"),
  "16 bits": (DEEP, BGR, "rgb16; png compressed rgb16", "png", "png"),
  "16 bits of BGR": (DEEP, None, "rgb16; png compressed bgr16", "png", "png"),
  "grey": (SCENE[..., :1], None, "mono8; jpeg compressed mono8", "jpeg", "jpeg"),
  "grey, not named": (SCENE[..., :1], None, "mono8; jpeg compressed ", "jpeg", "jpeg"),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_of_compressed_images(name):
  scene, order, kind, encoding, want = CHANNELS[name]
  data = encode_image(scene if order is None else scene[..., order], encoding, 100)
  changed("/camera", lambda ms: compressed(data, ms, kind))
  source = open_episodes("demo.mcap", **layout(paths={"i": "/camera"}))
  (values,) = values_of(source)
  assert source.spec["i"].data_format == want
  pixels = tf.io.decode_image(values["i"][0], dtype=scene.dtype).numpy()
  np.testing.assert_allclose(pixels, scene, atol=3)
  assert any("swapped back" in note for note in source.notes) == (order is not None)


def without(topic):
  make_bag(topics=[name for name in TOPICS if name != topic])


def changed(topic, make):
  kind, times, _ = TOPICS[topic]
  make_bag(changes={topic: (kind, times, make)})


def flip():
  data = bytearray(pathlib.Path(make_bag()).read_bytes())
  at = data.index(b"lz4" if b"lz4" in data else b"zstd") + 60
  data[at] ^= 255
  pathlib.Path("demo.mcap").write_bytes(data)


def other(value, otherwise):
  return lambda ms: value(ms) if ms >= 200 else otherwise(ms)


DAMAGES = {
  "a flipped byte": (flip, {}, "demo.mcap: expected"),
  "no contract": (
    make_bag,
    None,
    r"for\n  /arm  sensor_msgs/msg/JointState  6 messages\n(?s:.*)--layout layout.json",
  ),
  "another field": (
    make_bag,
    {"paths": {"x": "/arm:positions"}},
    r"x: expected one of the fields .* of sensor_msgs/msg/JointState.*mean 'position'",
  ),
  "a message of all kinds": (
    make_bag,
    {"paths": {"x": "/arm"}},
    r"/arm: x: expected numbers, text or an image.*Name a field of it",
  ),
  "a message without fields": (
    lambda: make_bag(changes={"/go": ("std_msgs/msg/Empty", (50, 150), lambda ms: {})}),
    {"paths": {"x": "/go"}},
    "/go: x: expected numbers, text or an image, got std_msgs/msg/Empty",
  ),
  "another key": (
    make_bag,
    {"clok": "/arm"},
    r"layout.json: clok: expected one of .*Did you mean 'clock'",
  ),
  "a topic of no path": (
    make_bag,
    {"tolerance": {"/arms": 1}},
    "tolerance: expected seconds, of a topic of .* got 1 of /arms. Did you mean '/arm'",
  ),
  "another resampling": (
    make_bag,
    {"resample": "mean"},
    "expected hold or nearest, of",
  ),
  "another time": (make_bag, {"time": "now"}, "time: expected one of .*got 'now'"),
  "no stamps": (
    make_bag,
    {"paths": {"x": "/goal:grip"}, "time": "header"},
    "lab/msg/Goal: expected messages with a header.stamp",
  ),
  "a message that is too old": (
    make_bag,
    {"tolerance": {"/arm": 0.03}},
    r"/arm: expected a message within 0.03 s of step 0, got .* -0.040 s from it",
  ),
  "joints in another order": (
    lambda: changed("/arm", other(joints, lambda ms: joints(ms, "ba"))),
    {},
    r"/arm: step 2: position: expected the values of \['b', 'a'\]",
  ),
  "another size": (
    lambda: changed(
      "/raw", other(TOPICS["/raw"][2], lambda ms: raw(IMAGES[0, :4], ms, "rgb8"))
    ),
    {},
    r"/raw: step 1: pixels: expected \(4, 6, 3\) uint8, as the first .*got \(8, 6, 3\)",
  ),
  "rows that are cut": (
    lambda: changed("/raw", lambda ms: {**raw(IMAGES[0], ms, "rgb8"), "height": 9}),
    {},
    "pixels: expected 9 rows of at least 18 bytes, .* got 144 bytes in rows of 18",
  ),
  "an encoding": (
    lambda: changed("/raw", lambda ms: raw(IMAGES[0], ms, "bayer_rggb8")),
    {},
    r"expected an encoding of .*got 'bayer_rggb8'",
  ),
  "a mosaic": (
    lambda: changed(
      "/camera",
      lambda ms: compressed(
        encode_image(SCENE[..., :1], "png"), ms, "bayer_rggb8; png compressed "
      ),
    ),
    {},
    "/camera: image: expected an image in colour, got 'bayer_rggb8; png compressed '",
  ),
  "no image": (
    lambda: changed("/camera", lambda ms: compressed(b"nothing", ms)),
    {},
    "/camera: image: expected a JPEG, a PNG, or depth of 16UC1",
  ),
  "messages after the last step": (
    lambda: make_bag(changes={"/goal": ("lab/msg/Goal", (990,), goal)}),
    {},
    "/goal: expected a message before the last one of /camera, got none",
  ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damages(name):
  """One error each, with file, topic and path."""
  make, contract, match = DAMAGES[name]
  make()
  options = {} if contract is None else layout(**contract)
  with pytest.raises(errors.ConversionError, match=match):
    values_of(open_episodes("demo.mcap", **options))


def test_messages_of_no_ros():
  with open("demo.mcap", "wb") as file:
    bag = mcap_writer.Writer(file)
    bag.start()
    schema = bag.register_schema("Arm", "jsonschema", b"{}")
    channel = bag.register_channel("/arm", "json", schema)
    bag.add_message(channel, 5, b"{}", 5)
    bag.finish()
  with pytest.raises(
    errors.ConversionError, match=r"ROS 2 \(cdr, ros2msg\), got json, j"
  ):
    read(clock="/arm", paths={"x": "/arm:position"})


def test_recording_without_steps_is_left_out():
  os.mkdir("bags")
  make_bag("bags/0.mcap")
  with open("bags/1.mcap", "wb") as file:
    bag = mcap_writer.Writer(file)
    bag.start()
    bag.register_channel("/camera", "cdr", 0)
    bag.finish()
  source = open_episodes("bags", **layout())
  assert source.num_episodes == 1
  assert source.notes == ["An episode without a step is left out: bags/1.mcap."]


def make_timed(sent, path="demo.mcap", **options):
  """Writes messages as they are: topic, value, and times in ms by kind."""
  with open(path, "wb") as file, writer.Writer(file, **options) as bag:
    kind = bag.register_msgdef("lab/msg/Joint", HEADER.format(fields="float64 value"))
    for topic, value, log, publish, stamp in sent:
      seconds, rest = divmod(stamp * MS, 10**9)
      stamped = {"stamp": {"sec": seconds, "nanosec": rest}, "frame_id": ""}
      message = {"header": stamped, "value": float(value)}
      bag.write_message(topic, kind, message, log * MS, publish * MS)


def timed(times, topic="/cam", kind="header"):
  """Messages 0, 1, ...: one kind of time is given, the others are a second apart."""
  places = {"log": 0, "publish": 1, "header": 2}
  sent = []
  for number, ms in enumerate(times):
    stamps = [1000 * (number + 1)] * 3
    stamps[places[kind]] = ms
    sent.append((topic, number, *stamps))
  return sent


RISING = [1000, 2000, 3000, 4000, 5000]
BOTH = {"clock": "/cam", "paths": {"cam": "/cam:value", "arm": "/arm:value"}}
# Time of the layout, times of the clock and of another topic; values of both by step.
EQUAL_TIMES = {
  "two clock messages at a time": (
    "log",
    [1000, 1000, 3000, 3000, 5000],
    RISING,
    [0, 1, 2, 3, 4],
    [0, 0, 2, 2, 4],
  ),
  "the same in the headers": (
    "header",
    [1000, 1000, 3000, 3000, 5000],
    RISING,
    [0, 1, 2, 3, 4],
    [0, 0, 2, 2, 4],
  ),
  "two messages of both at a time": (
    "header",
    [1000, 1000, 3000, 3000, 5000],
    [1000, 1000, 3000, 3000, 5000],
    [0, 1, 2, 3, 4],
    [0, 1, 2, 3, 4],
  ),
  "two arm messages at a time": (
    "log",
    RISING,
    [1000, 1000, 3000, 3000, 5000],
    [0, 1, 2, 3, 4],
    [1, 1, 3, 3, 4],
  ),
  "a latched message without a stamp": (
    "header",
    RISING,
    [0],
    [0, 1, 2, 3, 4],
    [0] * 5,
  ),
  "times from 0": ("header", [0, 1000, 2000], [0, 1000, 2000], [0, 1, 2], [0, 1, 2]),
  "times before 1970": (
    "header",
    [-2000, -1000, 0],
    [-2000, -1000, 0],
    [0, 1, 2],
    [0, 1, 2],
  ),
}


@pytest.mark.parametrize("resample", ["hold", "nearest"])
@pytest.mark.parametrize("name", EQUAL_TIMES)
def test_each_clock_message_is_one_step(name, resample):
  time, cam, arm, want_cam, want_arm = EQUAL_TIMES[name]
  make_timed([*timed(arm, "/arm", time), *timed(cam, "/cam", time)])
  source = open_episodes(
    "demo.mcap", **layout(**BOTH, time=time, resample={"/cam": resample})
  )
  (values,) = values_of(source)
  assert values["cam"].tolist() == want_cam
  assert values["arm"].tolist() == want_arm
  assert values["clocks/cam"].tolist() == [ms * MS for ms in cam]
  assert any("time of the message before" in n for n in source.notes) == (
    len({*cam}) < len(cam)
  )


LOG_INSTEAD = 'Take "time": "log", when messages were recorded'
# Kind of time, topic whose times are wrong, its times; the error.
BAD_TIMES = {
  "no stamps": (
    "header",
    "/cam",
    [0] * 5,
    f"expected header .* got 0 ns in all of 5 .*{LOG_INSTEAD}",
  ),
  "no stamps, where other topics have Unix time": (
    "header",
    "/cam",
    [0] * 5,
    "demo.mcap: /cam: expected header times that rise, got 0 ns in all of 5 messages",
  ),
  "no stamps of another topic": (
    "header",
    "/arm",
    [0] * 5,
    f"/arm: .* got 0 ns in all .*{LOG_INSTEAD}",
  ),
  "a clock that stands still": (
    "header",
    "/cam",
    [7] * 5,
    "got 7000000 ns in all of 5",
  ),
  "a clock set back": (
    "header",
    "/cam",
    [1000, 2000, 3000, 2650, 3650],
    "demo.mcap: /cam: expected header times that do not fall, got 2650000000 ns at "
    f"message 3, after 3000000000 ns. {LOG_INSTEAD}",
  ),
  "another topic's clock set back": (
    "header",
    "/arm",
    [1000, 2000, 3000, 2650, 3650],
    "demo.mcap: /arm: .*at message 3, after 3000000000 ns",
  ),
  "stamps that are set late": (
    "header",
    "/cam",
    [1000, 2000, 3000, 0, 5000],
    "message 3, after",
  ),
  "publish times that fall": (
    "publish",
    "/cam",
    [1000, 2000, 3000, 4, 5],
    "expected publish times .*message 3",
  ),
  "a recorder's clock set back": (
    "log",
    "/cam",
    [1000, 2000, 3000, 500, 1500],
    "/cam: expected log times that do not fall, got 500000000 ns at message 3, after "
    '3000000000 ns. Take "time": "header" or "publish"; or split .* `mcap sort`',
  ),
  "another topic's log times": (
    "log",
    "/arm",
    [3000, 2000, 1000],
    "/arm: expected log times",
  ),
  "no log times": (
    "log",
    "/cam",
    [0] * 5,
    'got 0 ns in all of 5 .* Take "time": "header"',
  ),
  "a jump ahead": (
    "header",
    "/arm",
    [1000, 2000, 3603000, 3604000, 3605000],
    "/arm: expected header times of the clock of /cam, got 3603000000000 ns at "
    f"message 2, 3599.000 s from those .* {LOG_INSTEAD}",
  ),
  "the clock's jump ahead": (
    "header",
    "/cam",
    [1000, 2000, 3603000, 3604000, 3605000],
    "/cam: expected header times that rise as those of the log do, got 3603000000000 "
    f"ns at message 2, after 2000000000 ns. {LOG_INSTEAD}",
  ),
  "a clock's first stamp that is not set": (
    "header",
    "/cam",
    [0, *(1_700_000_000_000 + ms for ms in RISING)],
    "demo.mcap: /cam: expected header times that are set, got 0 ns at message 0, "
    f"before 1700000001000000000 ns. {LOG_INSTEAD}",
  ),
  "a clock's only stamp that is not set, beside Unix time": (
    "header",
    "/cam",
    [0],
    "demo.mcap: /cam: expected header times that are set, got 0 ns at message 0",
  ),
  "publish times that are not set at first, beside Unix time": (
    "publish",
    "/cam",
    [0, *(1_700_000_000_000 + ms for ms in RISING)],
    "demo.mcap: /cam: expected publish times that are set, got 0 ns at message 0",
  ),
  "times since the start": (
    "publish",
    "/arm",
    [10**9 + ms for ms in RISING],
    "/arm: expected publish times of the clock",
  ),
  "times beyond int64": (
    "log",
    "/cam",
    [*RISING[:4], 2**63 // MS + 1],
    "message 4: expected log times below 2\\*\\*63 ns",
  ),
}


@pytest.mark.parametrize("name", BAD_TIMES)
def test_bad_times(name):
  time, topic, times, match = BAD_TIMES[name]
  other = {"/cam": "/arm", "/arm": "/cam"}[topic]
  start = 1_700_000_000_000 if "Unix" in name else 0
  rising = [start + ms for ms in RISING]
  make_timed([*timed(rising, other, time), *timed(times, topic, time)])
  with pytest.raises(errors.ConversionError, match=match):
    read(**BOTH, time=time)


def test_bad_times_across_the_files_of_a_recording():
  os.mkdir("run")
  pathlib.Path("run/metadata.yaml").write_text("rosbag2_bagfile_information:")
  make_timed(timed(RISING), "run/run_0.mcap")
  make_timed(timed(RISING), "run/run_1.mcap")
  with pytest.raises(
    errors.ConversionError, match=r"run_1.mcap: /cam: .* at message 5"
  ):
    read("run", clock="/cam", paths={"cam": "/cam:value"}, time="header")


def test_tolerance_note():
  make_bag()
  for tolerance, has_advice in (({}, True), ({"/goal": 1}, False), (1, False)):
    source = open_episodes("demo.mcap", **layout(tolerance=tolerance))
    list(source)
    note = source.notes[-1]
    assert "The message farthest from its step is 0.105 s away: /goal at step 1" in note
    assert ("A tolerance in the layout would refuse it." in note) == has_advice


CHUNKS = {
  "zstd": {"compression": mcap_writer.CompressionType.ZSTD},
  "lz4": {"compression": mcap_writer.CompressionType.LZ4},
  "no compression": {"compression": mcap_writer.CompressionType.NONE},
  "no chunks": {"use_chunking": False},
  "no index": {"index_types": mcap_writer.IndexType.NONE, "use_statistics": False},
  "no summary": {
    "index_types": mcap_writer.IndexType.NONE,
    "use_statistics": False,
    "repeat_channels": False,
    "repeat_schemas": False,
    "use_summary_offsets": False,
  },
}


def make_large(num_bytes, **options):
  """Writes steps of /cam, and one message of zeros between them that is not read."""
  with open("large.mcap", "wb") as file:
    bag = mcap_writer.Writer(file, chunk_size=1 << 40, **options)
    bag.start()
    definition = HEADER.format(fields="float64 value").encode()
    schema = bag.register_schema("lab/msg/Joint", "ros2msg", definition)
    cam, other = (bag.register_channel(t, "cdr", schema) for t in ("/cam", "/other"))
    for number in range(3):
      # A little-endian header of 12 bytes, an empty frame_id, padding, the value.
      stamp = np.asarray([number + 1, 0, 1, 0], "<u4").tobytes()
      data = b"\0\1\0\0" + stamp + np.float64(number).tobytes()
      bag.add_message(cam, (number + 1) * 10**9, data, 0)
      if number == 1:
        bag.add_message(other, 2 * 10**9, bytes(num_bytes), 0)
    bag.finish()


@pytest.mark.parametrize("name", CHUNKS)
def test_topics_that_are_not_read_take_no_memory(name):
  """A small file, of any writer, may have a message of gigabytes."""
  is_small = name in ("zstd", "lz4", "no index")
  make_large(1 << 27 if is_small else 100, **CHUNKS[name])
  tracemalloc.start()
  try:
    (values,) = read("large.mcap", clock="/cam", paths={"x": "/cam:value"})
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert values["x"].tolist() == [0, 1, 2]
  assert peak < 1 << 24
