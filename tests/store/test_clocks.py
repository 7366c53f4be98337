"""Columns on other clocks than the steps': stores, views, and windows of several rates.

Windows are compared with a search through all values of the episode, in numpy.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  convert,
  data,
  errors,
  preprocessors,
  specs,
  statistics,
  store,
  windows,
)
from t2r_seq.checks import check
from t2r_seq.episodes import open_episodes
from t2r_seq.specs import Seconds
from t2r_seq.verification.training_side import Dataset
from t2r_seq.viewing import model_side
from t2r_seq.viewing.episodes import EpisodeViewer

Spec = specs.ExtendedTensorSpec
CLOCKS = {
  "force": "clocks/force",
  "clocks/force": "clocks/force",
  "camera": "clocks/camera",
  "clocks/camera": "clocks/camera",
}
STORED = {
  "arm": Spec((2,), tf.float32, "arm", is_sequence=True),
  "stamp": Spec((), tf.float64, "stamp", is_sequence=True),
  "force": Spec((None, 3), tf.float32, "force"),
  "clocks/force": Spec((None,), tf.float64, "clocks/force"),
  "camera": Spec((None, 4, 4, 3), tf.uint8, "camera", data_format="png"),
  "clocks/camera": Spec((None,), tf.int64, "clocks/camera"),
}
LENGTHS = (12, 30, 1)
OFFSETS = {"force": (-0.1, -0.031, 0.0, 0.05), "camera": (-0.2, 0.0)}
SELECTS = {"force": "hold", "camera": "nearest"}
SPEC = {
  **{
    path: Spec(
      (len(offsets), *STORED[path].shape[1:]),
      STORED[path].dtype,
      path,
      time_offsets=Seconds(*offsets, select=SELECTS[path]),
    )
    for path, offsets in OFFSETS.items()
  },
  "arm": Spec((2, 2), tf.float32, "arm", time_offsets=(-1, 0)),
}


def episode(number):
  """Steps at 20 Hz, a force at 100 Hz with gaps, a camera at 7 Hz that repeats."""
  rng, length = np.random.default_rng(number), LENGTHS[number]
  start, seconds = 100.0 * number, length / 20
  force = start - 0.2 + np.arange(int(100 * seconds) + 25) / 100
  force = np.sort(force + rng.normal(0, 0.003, len(force)))
  force += 0.15 * (np.arange(len(force)) > 20)
  camera = start - 0.1 + np.arange(int(7 * seconds) + 3) / 7
  camera = np.maximum(camera, start - 0.1 * (number == 1))
  arm = 1000.0 * number + np.arange(2.0 * length).reshape(length, 2)
  return {
    "arm": arm.astype(np.float32),
    "stamp": start + np.arange(length) / 20,
    "force": rng.random((len(force), 3)).astype(np.float32),
    "clocks/force": force,
    "camera": rng.integers(0, 255, (len(camera), 4, 4, 3)).astype(np.uint8),
    "clocks/camera": np.rint(camera * 1e9).astype(np.int64),
  }


def expected(path, values):
  """Returns the windows of an episode, and which elements are real."""
  stamps = values[f"clocks/{path}"]
  stamps = stamps if stamps.dtype.kind == "f" else stamps * 1e-9
  shown, real = [], []
  # A policy that starts at the first step knows no value before the newest one.
  begin = max(np.sum(stamps <= values["stamp"][0] + 1e-7) - 1, 0)
  rows = np.arange(begin, len(stamps))
  for anchor in values["stamp"]:
    known = rows[stamps[rows] <= anchor + 1e-7]
    for offset in OFFSETS[path]:
      allowed = known if offset <= 0 else rows
      allowed = allowed if len(allowed) else rows[:1]
      away = anchor + offset - stamps[allowed]
      before = allowed[away >= -1e-7]
      row = before[-1] if len(before) else begin
      if SELECTS[path] == "nearest":  # The last one of one stamp, the earlier of two.
        nearest = np.abs(away) <= np.abs(away).min() + 1e-7
        row = allowed[nearest][0]
        row = allowed[stamps[allowed] == stamps[row]][-1]
      is_known = offset <= 0 or anchor + offset <= stamps[-1] + 1e-7
      shown.append(values[path][row])
      real.append(len(before) > 0 and is_known)
  count = len(values["stamp"]), len(OFFSETS[path])
  return np.reshape(shown, (*count, *np.shape(shown)[1:])), np.reshape(real, count)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def make_store(name="own", segments=1):
  writer = store.EpisodeStore.create(name, STORED, {"fps": 20}, "a", clocks=CLOCKS)
  with writer:
    writer.append_episode(episode(0))
    for number in range(1, len(LENGTHS)) if segments == 1 else ():
      writer.append_episode(episode(number))
  if segments > 1:
    with store.EpisodeStore.append(name, "b") as writer:
      for number in range(1, len(LENGTHS)):
        writer.append_episode(episode(number))
  return name


def same(found, want):
  """Compares values of an episode; images decoded."""
  assert {*found} == {*want}
  for path, value in want.items():
    got = found[path]
    if path == "camera":
      got = np.stack([tf.io.decode_png(each).numpy() for each in got.tolist()])
    np.testing.assert_array_equal(got, value, err_msg=path)


@pytest.mark.parametrize("segments", [1, 2])
def test_values_and_clocks_are_read_back(segments):
  episodes = open_episodes(make_store(segments=segments))
  assert episodes.clocks == CLOCKS
  assert episodes.lengths.tolist() == [*LENGTHS]
  for number in range(len(LENGTHS)):
    same(episodes.read(number), episode(number))
  part = episodes.read(1, ["arm", "force"], 3, 5)
  assert len(part["arm"]) == 2 and len(part["force"]) == len(episode(1)["force"])
  if segments > 1:
    assert store.EpisodeStore.merge("own") == len(LENGTHS)
    same(open_episodes("own").read(2), episode(2))
  assert check(open_episodes("own")).is_good


def test_disk_has_the_raw_values_and_few_bytes_more():
  make_store()
  folder = os.path.join("own", "segments", "a")
  for path in ("force", "clocks/force"):
    name = os.path.join(folder, path.replace("/", "%2F"))
    raw = sum(episode(number)[path].nbytes for number in range(len(LENGTHS)))
    assert os.path.getsize(f"{name}.data") == raw
    assert os.path.getsize(f"{name}.offsets") == 8 * (len(LENGTHS) + 1)


ROADS = {
  "store": lambda: data.StoreInputGenerator(make_store(), 5, seed=1),
  "store of two segments": lambda: data.StoreInputGenerator(
    make_store(segments=2), 5, seed=1
  ),
  "store in place": lambda: data.EpisodesInputGenerator(
    make_store(), 5, seed=1, memory_budget=10**4
  ),
  "renamed": lambda: data.EpisodesInputGenerator(
    open_episodes(make_store()).rename({"clocks": "times"}), 5, seed=1
  ),
}


def batches(generator, mode="eval", spec=SPEC, take=None):
  generator.set_feature_specifications(windows.add_mask_specs(spec))
  generator.set_label_specifications({})
  with generator.explain_failures():
    dataset = generator.create_dataset(mode)
    found = [features for features, _ in (dataset.take(take) if take else dataset)]
  return {p: np.concatenate([each[p].numpy() for each in found]) for p in found[0]}


@pytest.mark.parametrize("road", ROADS)
def test_windows_equal_a_search_through_all_values(road):
  generator = ROADS[road]()
  found = batches(generator)
  assert generator.num_examples == sum(LENGTHS)
  now = np.concatenate([episode(number)["arm"] for number in range(len(LENGTHS))])
  np.testing.assert_array_equal(found["arm"][:, 1], now)
  train = batches(generator, "train", take=sum(LENGTHS) // 5)
  rows = np.searchsorted(now[:, 0], train["arm"][:, 1, 0])
  for path in OFFSETS:
    want = [expected(path, episode(number)) for number in range(len(LENGTHS))]
    shown, real = (np.concatenate(each) for each in zip(*want, strict=True))
    np.testing.assert_array_equal(found[f"{path}_mask"], real, err_msg=path)
    np.testing.assert_array_equal(found[path], shown, err_msg=path)
    np.testing.assert_array_equal(train[path], shown[rows], err_msg=path)


def test_statistics_count_all_values():
  paths = statistics.compute_statistics(make_store()).paths
  force = np.concatenate([episode(number)["force"] for number in range(len(LENGTHS))])
  assert paths["force"].count.tolist() == [len(force)] * 3
  np.testing.assert_allclose(paths["force"].measure("mean"), force.mean(0, float))
  spec = {"force": SPEC["force"], "arm": SPEC["arm"]}
  transform = preprocessors.NoOpPreprocessor(lambda mode: spec, lambda mode: {})
  paths = statistics.compute_statistics("own", transform=transform).paths
  want = [expected("force", episode(number)) for number in range(len(LENGTHS))]
  shown, real = (np.concatenate(each) for each in zip(*want, strict=True))
  np.testing.assert_allclose(
    paths["force"].measure("mean"), shown[real].mean(0, float), rtol=1e-6
  )


def test_view_shows_the_windows_of_training():
  viewer = EpisodeViewer(open_episodes(make_store()))
  side = model_side.ModelSide(viewer, SPEC)
  for number, values in viewer.episodes():
    seen = side.see(values, side.anchors(LENGTHS[number]), 0)
    for path in OFFSETS:
      shown, real = expected(path, episode(number))
      np.testing.assert_array_equal(seen.raw[f"features/{path}"], shown)
      np.testing.assert_array_equal(seen.real[f"features/{path}"], real)


def test_verify_replays_newest_values_with_stamps():
  dataset = Dataset(make_store(), specs.TensorSpecStruct(SPEC), "repeat")
  num_lost = 0
  for found in dataset.episodes():
    values = episode(found.number)
    for path in OFFSETS:
      np.testing.assert_array_equal(found.raw[path], expected(path, values)[0])
    rows = np.searchsorted(values["clocks/force"], values["stamp"], "right") - 1
    num_lost += int(np.maximum(np.diff(rows) - 1, 0).sum())
    np.testing.assert_array_equal(found.observed["force"], values["force"][rows])
    stamps = found.observed["stamps/force"]
    np.testing.assert_array_equal(stamps, values["clocks/force"][rows])
  # At 100 Hz several values come between two steps.
  assert dataset.num_lost["force"] == num_lost > 0


def test_steps_of_another_clock_are_an_error():
  spec = {**SPEC, "force": Spec((2, 3), tf.float32, "force", time_offsets=(-1, 0))}
  want = r"force: expected Seconds\(...\), as its values are on the clock clocks/force"
  for make in (data.StoreInputGenerator, data.EpisodesInputGenerator):
    with pytest.raises(errors.SpecError, match=want):
      batches(make(make_store(make.__name__), 5), spec=spec)


def changed(**values):
  return {**episode(0), **{path.replace("__", "/"): v for path, v in values.items()}}


INVALID = {
  "fewer stamps": (
    changed(clocks__force=np.zeros(3)),
    "force: expected 3 values, as its clock clocks/force has, got 8",
  ),
  "no values": (
    changed(force=np.zeros((0, 3), np.float32), clocks__force=np.zeros(0)),
    "force: expected at least one value in an episode, got none",
  ),
  "another shape": (
    changed(force=np.zeros((5, 2), np.float32)),
    r"force: expected \(T, 3\) float32, got .*\(5, 2\)",
  ),
}


@pytest.mark.parametrize("name", INVALID)
def test_bad_values_are_not_stored(name):
  values, want = INVALID[name]
  with store.EpisodeStore.create("bad", STORED, clocks=CLOCKS) as writer:
    with pytest.raises(errors.SpecError, match=want):
      writer.append_episode(values)
    writer.append_episode(episode(0))
  same(open_episodes("bad").read(0), episode(0))


BAD_STAMPS = {
  "they fall": (
    {"clocks__force": np.sort(episode(0)["clocks/force"])[::-1].copy()},
    None,
    "episode 0.*: clocks/force: expected time stamps that never fall",
  ),
  "a small tolerance": (
    {},
    0.003,
    "tolerance: expected at least half a period of the clock, 0.00.* s, got 0.003",
  ),
}


@pytest.mark.parametrize("name", BAD_STAMPS)
def test_bad_stamps_of_another_clock_are_one_error(name):
  values, tolerance, want = BAD_STAMPS[name]
  with store.EpisodeStore.create("bad", STORED, clocks=CLOCKS) as writer:
    writer.append_episode(changed(**values))
  seconds = Seconds(-0.1, 0.0, select="nearest", tolerance=tolerance)
  spec = {"force": Spec((2, 3), tf.float32, "force", time_offsets=seconds)}
  for make in (data.StoreInputGenerator, data.EpisodesInputGenerator):
    with pytest.raises(errors.SpecError, match=want):
      batches(make("bad", 5), spec=spec)


def test_stamps_of_another_clock_that_fall_are_reported(capsys):
  falling = np.sort(episode(0)["clocks/force"])[::-1].copy()
  with store.EpisodeStore.create("bad", STORED, clocks=CLOCKS) as writer:
    writer.append_episode(episode(0))
    writer.append_episode(changed(clocks__force=falling))
  want = "clocks/force: expected time stamps that do not run backwards"
  for source in (open_episodes("bad"), "bad"):  # Read by episodes, and by columns.
    (problem,) = check(source).problems
    assert problem.text.startswith(want) and problem.episodes == (1,)
  assert cli.main(["doctor", "bad"]) == 1
  assert f"episode 1 of bad: {want}" in " ".join(capsys.readouterr().out.split())
  with pytest.raises(errors.SpecError, match=r"resample: .*clocks/force: .*never fall"):
    convert.convert("bad", "steps.zarr", resample="hold", decode_images=True)


BAD_CLOCKS = {
  "no such column": (
    {"force": "clocks/arm"},
    "clocks/arm: expected the time stamps of",
  ),
  "steps": ({**CLOCKS, "arm": "clocks/force"}, "arm: expected values on the clock"),
  "no clock of a ragged column": ({}, "force: expected a fully defined shape"),
}


@pytest.mark.parametrize("name", BAD_CLOCKS)
def test_bad_clocks_are_one_error(name):
  clocks, want = BAD_CLOCKS[name]
  with pytest.raises(errors.SpecError, match=want):
    store.EpisodeStore.create("bad", STORED, clocks=clocks)


def test_stores_of_one_clock_have_no_more_than_before():
  spec = {"arm": STORED["arm"]}
  with store.EpisodeStore.create("plain", spec) as writer:
    writer.append_episode({"arm": episode(0)["arm"]})
  with open(os.path.join("plain", "store.json"), encoding="utf-8") as file:
    assert "clocks" not in json.load(file)
  assert not open_episodes("plain").clocks
