"""Pages of episodes: what is suspected, what a model sees, what fits; in a browser."""

from __future__ import annotations

import base64
import functools
import io
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  data,
  errors,
  models,
  policies,
  preprocessors,
  specs,
  statistics,
  store,
  training,
  viewing,
  windows,
)
from t2r_seq.cli import main
from t2r_seq.episodes import open_episodes
from t2r_seq.episodes.splits import choose_episodes
from t2r_seq.progress import Progress
from t2r_seq.viewing.episodes import EpisodeViewer
from t2r_seq.viewing.model_side import ModelSide
from t2r_seq.viewing.survey import survey_episodes
from tests.records import rlds_data
from tests.viewing import browser

_SPEC = specs.ExtendedTensorSpec
NUM_EPISODES, SIZE = 40, 16
STORED = {
  "camera": _SPEC((SIZE, SIZE, 3), tf.uint8, "camera", is_sequence=True),
  "state": _SPEC((3,), tf.float32, "state", is_sequence=True),
  "action": _SPEC((2,), tf.float32, "action", is_sequence=True),
  "timestamp": _SPEC((), tf.float64, "timestamp", is_sequence=True),
  "task": _SPEC((), tf.string, "task"),
}
# Which episode has which defect, and what its reason begins with.
PLANTED = {
  4: ("frozen", "camera is frozen from step 5 to "),
  11: ("clipped", "action[0] is clipped in "),
  22: ("jerk", "the jerk of action is "),
  35: ("error", "the export's error is "),
}


class Follow(models.RegressionModel):
  """Says half of the last state with its sign turned, twice; needs no training."""

  def get_feature_specification(self, mode):
    features = {
      "camera": _SPEC(
        (2, SIZE, SIZE, 3),
        tf.float32,
        "camera",
        time_offsets=(-2, 0),
        data_format="png",
      ),
      "state": _SPEC((2, 3), tf.float32, "state", time_offsets=(-1, 0)),
    }
    return windows.add_mask_specs(specs.TensorSpecStruct(features), ["state"])

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=_SPEC((2, 2), tf.float32, "action", time_offsets=(0, 1))
    )

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def a_func(self, features, mode):
    bias = 0.0 * self.network(tf.reduce_mean(features.camera, axis=[1, 2, 3]))
    predicted = -0.5 * features.state[:, -1, :2] + bias
    return {"inference_output": tf.stack([predicted, predicted], axis=1)}


def _episode(number, rng):
  length = int(rng.integers(14, 18))
  phase, speed = rng.uniform(0, 6, 3), rng.uniform(0.25, 0.35, 3)
  state = np.sin(phase + speed * np.arange(length)[:, np.newaxis])
  action = -0.5 * state[:, :2] + rng.normal(0, 0.002, [length, 2])
  camera = rng.integers(0, 60, [length, SIZE, SIZE, 3])
  camera[:, 4:9, 4:9] += np.round(90 + 80 * state[:, np.newaxis, np.newaxis]).astype(
    int
  )
  if number == 4:
    camera[5:] = camera[5]
  if number == 11:
    action[:, 0] = np.clip(action[:, 0], -0.12, 0.12)
  if number == 22:
    action += rng.normal(0, 0.15, action.shape)
  if number == 35:
    action = action[::-1] * [1, -1]
  return {
    "camera": camera.astype(np.uint8),
    "state": state.astype(np.float32),
    "action": action.astype(np.float32),
    "timestamp": 0.1 * np.arange(length),
    "task": np.asarray(f"push </script> {number % 3}".encode(), object),
  }


def _make_store(path, episodes, metadata=None):
  with store.EpisodeStore.create(str(path), STORED, metadata, allow_nan=True) as writer:
    for episode in episodes:
      writer.append_episode(episode)
  return str(path)


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
  """A store of 40 episodes with four defects."""
  folder = tmp_path_factory.mktemp("view")
  rng = np.random.default_rng(3)
  episodes = [_episode(number, rng) for number in range(NUM_EPISODES)]
  _make_store(folder / "store", episodes, {"fps": 10})
  _make_store(folder / "small", episodes[:3])
  statistics.compute_statistics(str(folder / "store"), str(folder / "statistics.json"))
  return folder


@pytest.fixture(name="model", scope="module")
def fixture_model(folder):
  stages = [
    functools.partial(
      preprocessors.Normalize,
      statistics_path=str(folder / "statistics.json"),
      modes={"state": "mean_std"},
    ),
    preprocessors.ImageToFloatPreprocessor,
  ]
  make = functools.partial(
    preprocessors.ComposedPreprocessor, preprocessor_classes=stages
  )
  return Follow(preprocessor_cls=make, padding="repeat")


def _data(page):
  """What a page has been given."""
  text = page.read_text(encoding="utf-8")
  assert text.count("</script>") == 2  # What texts of the data have ends nothing.
  found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
  return json.loads(found[1])["sources"]


def test_planted_defects_are_among_the_first_five_outliers(folder, model, capsys):
  raw = Follow(
    padding="repeat", preprocessor_cls=preprocessors.ImageToFloatPreprocessor
  )
  raw.build()
  training.export_saved_model(raw, str(folder / "export"), global_step=7)
  page = folder / "page.html"
  predictor = policies.ExportedSavedModelPredictor(str(folder / "export"))
  predictor.restore()
  found = viewing.view(
    str(folder / "store"), page, model=model, predictor=predictor,
    png=folder / "sheet.png",
  )  # fmt: skip
  first = {each.number: each.reasons for each in found.surveys[0].ranked[:5]}
  assert set(PLANTED) <= set(first)
  for number, (what, text) in PLANTED.items():
    reasons = {reason.what: reason.text for reason in first[number]}
    assert reasons[what].startswith(text), reasons
  assert page.stat().st_size == found.page.num_bytes < 20_000_000
  assert (folder / "sheet.png").read_bytes().startswith(b"\x89PNG")
  (source,) = _data(page)
  assert len(source["episodes"]) == len(source["detail"]) == NUM_EPISODES
  assert [each["n"] for each in source["episodes"][:5]] == list(first)
  detail = source["detail"]["4"]
  length = next(each["len"] for each in source["episodes"] if each["n"] == 4)
  assert len(detail["frames"]["camera"]) == length
  assert ["frozen", "camera", 6, length] in detail["marks"]
  assert detail["texts"]["task"] == [[0, "push </script> 1"]]
  seen = {each["path"]: each for each in detail["windows"]["paths"]}
  assert seen["features/camera"]["offsets"] == [-2, 0]
  assert len(seen["features/camera"]["images"]) == length
  assert {"raw", "preprocessed", "real"} <= set(seen["features/state"])
  other = source["detail"]["35"]["predicted"]["error"]
  assert np.mean(detail["predicted"]["error"]) < 0.3 < 1 < np.mean(other)

  arguments = ["view", str(folder / "store"), "--export", str(folder / "export")]
  assert (
    main([*arguments, "-o", str(folder / "again.html"), "--episodes", "4,5,7"]) == 0
  )
  printed = capsys.readouterr().out
  assert "3 episodes" in printed and "All 3 episodes are shown" in printed
  pair = [str(folder / "export")] * 2
  assert main([*arguments[:3], *pair, "-o", str(folder / "pair.html")]) == 0
  first, second = _data(folder / "pair.html")
  assert first["name"].endswith(f"store, {predictor.model_path}")
  assert first["detail"]["35"]["predicted"] == second["detail"]["35"]["predicted"]
  with pytest.raises(errors.SpecError, match="expected one export, or two, got 3"):
    viewing.view(str(folder / "store"), page, predictor=[predictor] * 3)
  assert _data(folder / "again.html")[0]["episodes"][0]["n"] == 4


def test_windows_are_those_of_training(folder, model):
  path = str(folder / "small")
  reader = EpisodeViewer(open_episodes(path))
  mode = specs.ModeKeys.TRAIN
  side = ModelSide(
    reader,
    model.preprocessor.get_in_feature_specification(mode),
    model.preprocessor.get_in_label_specification(mode),
    model.padding,
    model.preprocessor,
  )
  seen = [
    side.see(values, side.anchors(len(values["state"])), 0)
    for _, values in reader.episodes()
  ]
  generator = data.StoreInputGenerator(path, batch_size=64, drop_remainder=False)
  generator.set_specification_from_model(model, specs.ModeKeys.EVAL)
  features, labels = next(iter(generator.create_dataset(specs.ModeKeys.EVAL)))
  for path, value in [("camera", features.camera), ("state", features.state)]:
    got = np.concatenate([each.inputs[f"features/{path}"] for each in seen])
    np.testing.assert_array_equal(got, value.numpy())
  got = np.concatenate([each.inputs["labels/target"] for each in seen])
  np.testing.assert_array_equal(got, labels.target.numpy())
  real = np.concatenate([each.real["features/state"] for each in seen])
  np.testing.assert_array_equal(real, features.state_mask.numpy())


def test_windows_by_time_are_shown_with_their_seconds(folder, tmp_path):
  """The stamps are 0.1 s apart: 0.15 s ago is the step before the last one."""
  seconds = specs.Seconds(-0.15, 0.0)
  spec = {"state": _SPEC((2, 3), tf.float32, "state", time_offsets=seconds)}
  page = tmp_path / "page.html"
  viewing.view(str(folder / "small"), page, spec=spec)
  detail = _data(page)[0]["detail"]["0"]
  (window,) = detail["windows"]["paths"]
  assert (window["offsets"], window["unit"]) == ([-0.15, 0.0], " s")
  numbers = np.frombuffer(base64.b64decode(window["preprocessed"]), "<f4").reshape(
    -1, 2, 3
  )
  state = _episode(0, np.random.default_rng(3))["state"]
  anchors = np.array(detail["windows"]["anchors"])
  rows = np.stack([np.maximum(anchors - 2, 0), anchors], 1)
  np.testing.assert_array_equal(numbers, state[rows])


def test_command_that_is_rarely_given_is_not_jerky(tmp_path):
  spec = {"close": _SPEC((1,), tf.float32, "close", is_sequence=True)}
  path = str(tmp_path / "store")
  with store.EpisodeStore.create(path, spec) as writer:
    for number in range(12):
      close = np.zeros([15, 1], np.float32)
      close[9:] = number % 4 == 0
      writer.append_episode({"close": close})
  survey = survey_episodes(EpisodeViewer(open_episodes(path)))
  assert not [r for e in survey.ranked for r in e.reasons if r.what == "jerk"]


def test_bad_numbers_times_and_lengths(tmp_path):
  rng = np.random.default_rng(0)
  episodes = [_episode(number + 50, rng) for number in range(12)]
  episodes[2]["state"][3, 1] = np.nan
  episodes[5]["timestamp"][8:] += 1.0
  episodes[7]["action"][:, 1] = 0.25
  episodes[9] = {
    path: value[:4] if value.ndim else value for path, value in episodes[9].items()
  }
  path = _make_store(tmp_path / "store", episodes)
  survey = survey_episodes(EpisodeViewer(open_episodes(path)))
  predicted = {
    each.number: [reason.text for reason in each.reasons] for each in survey.ranked
  }
  assert next(iter(predicted)) == 2
  assert predicted[2] == ["state has 1 NaN or infinite value"]
  assert predicted[5] == ["timestamp has a gap of 11 usual steps"]
  assert "action[1] is constant" in predicted[7]
  assert predicted[9][0].startswith("4 steps, where 1")


def test_contact_sheet_shows_the_suspected_camera(tmp_path):
  image = pytest.importorskip("PIL.Image")
  spec = {
    name: _SPEC((16, 16, 3), tf.uint8, name, is_sequence=True)
    for name in ("blue", "red")
  }
  rng = np.random.default_rng(0)
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    for number in range(12):
      values = {name: np.zeros((12, 16, 16, 3), np.uint8) for name in spec}
      values["blue"][..., 2] = 200
      values["red"][..., 0] = 200
      for each in values.values():
        each[..., 1] = rng.integers(0, 30, [12, 16, 16])
      if number == 7:
        values["red"][3:] = values["red"][3]
      writer.append_episode(values)
  made = viewing.view(tmp_path / "s", tmp_path / "v.html", png=tmp_path / "v.png")
  assert made.surveys[0].ranked[0].number == 7
  sheet = np.asarray(image.open(tmp_path / "v.png").convert("RGB"), int)
  first, second = sheet[40], sheet[140]
  assert (
    (first[:, 0] - first[:, 2]).max() > 150 > 0 > (second[:, 0] - second[:, 2]).min()
  )
  assert (second[:, 2] - second[:, 0]).max() > 150 > (first[:, 2] - first[:, 0]).max()
  # Frozen frames have an orange border: of steps 0, 2, 3, 5, 6, 8, 9 and 11 the last 5.
  border = np.abs(sheet[7] - [180, 84, 10]).max(-1) < 9
  assert np.diff(border).sum() == 2 * 5 and not np.any(sheet[101] == [180, 84, 10])


def test_progress_is_shown_from_the_start(folder, model, tmp_path):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  stream = Terminal()
  viewing.view(
    folder / "small", tmp_path / "v.html", model=model, progress=Progress(stream)
  )
  shown = stream.getvalue()
  assert shown.startswith(f"\r\x1b[Klook at {folder / 'small'}")
  assert f"\x1b[Kdraw {folder / 'small'}" in shown


def test_room_and_two_sources(folder, tmp_path, monkeypatch):
  monkeypatch.setattr("t2r_seq.viewing.page._MOST_LISTED", 30)
  pair = [folder / "store", folder / "small"]
  page = tmp_path / "both.html"
  found = viewing.view(pair, page, max_bytes=500_000)
  assert page.stat().st_size <= 500_000
  assert found.page.chosen[0].startswith(f"{len(_data(page)[0]['detail'])} of 40 ")
  assert [source["name"] for source in _data(page)] == ["store", "small"]
  (source, _) = _data(page)
  unlisted = [n for start, stop in source["unlisted"] for n in range(start, stop)]
  assert sorted([*unlisted, *(each["n"] for each in source["episodes"])]) == [
    *range(40)
  ]
  with pytest.raises(errors.SpecError, match=r"expected a page of at most 1,000 bytes"):
    viewing.view(pair, page, max_bytes=1000)


def test_episodes_of_rlds(tmp_path):
  page = tmp_path / "page.html"
  found = viewing.view(rlds_data.FILES, page)
  lengths = [each.num_steps for each in found.surveys[0].episodes]
  assert lengths == [rlds_data.NUM_STEPS[number] for number in rlds_data.EPISODES]
  assert len(_data(page)[0]["episodes"]) == 2


BAD = [
  (
    ["nothing_there"],
    r"expected a store \(with a store.json\), a LeRobot folder \(with meta",
  ),
  (["store", "small", "store"], "expected one source, or two, got 3"),
  (["store", "--episodes", "77"], "expected numbers from 0 to 39, got 77"),
  (["store", "-o", "no_folder/page.html"], "got no folder"),
  (["store", "--png", "no_folder/sheet.png"], "got no folder"),
  (["store", "--rrd", "page.rrd"], r"rerun is not installed.*t2r_seq\[rerun\]"),
  (["store", "--drop", "stat"], "expected one of the paths"),
]


@pytest.mark.parametrize("argv, message", BAD, ids=[each[1][:24] for each in BAD])
def test_bad_sources_are_one_clear_error(folder, monkeypatch, capsys, argv, message):
  monkeypatch.chdir(folder)
  monkeypatch.setitem(__import__("sys").modules, "rerun", None)
  assert main(["view", *argv]) == 1
  assert re.search(message, capsys.readouterr().err)
  assert not (folder / "view.html").exists()


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium on this machine")
def test_page_in_a_browser(folder, model, tmp_path):
  page = tmp_path / "page.html"
  viewing.view(str(folder / "store"), page, model=model)
  text = page.read_text(encoding="utf-8")
  (source,) = _data(page)
  # As many as a large set has; the frames are those of 40.
  source["episodes"] = [
    {**source["episodes"][number % NUM_EPISODES], "n": number} for number in range(1000)
  ]
  source.update(numEpisodes=1003, unlisted=[[1000, 1003]])
  start = text.index('id="data">') + len('id="data">')
  made = json.dumps({"sources": [source]}).replace("<", "\\u003c")
  page.write_text(text[:start] + made + text[text.index("</script>", start) :])
  with browser.open_page() as shown:
    shown.open(page)
    assert shown.ask("document.body.dataset.ready") == "yes"
    metrics = shown.metrics()
    assert sum(metrics[f"{each}Duration"] for each in browser.WORK) < 2
    where = "document.querySelector('.step').textContent.split(' · ')[0]"
    shown.press("ArrowRight", "ArrowRight")
    assert shown.ask(where).startswith("2 of 1")
    title = "document.querySelector('.viewer h2').textContent"
    shown.press("ArrowDown")
    assert shown.ask(title) == "Episode 1"
    assert shown.ask("document.querySelectorAll('.pad').length") == 0
    shown.press("Home")
    # The first steps of both stacks are padding; the canvas has something on it.
    shown.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert shown.ask("document.querySelectorAll('.cells .pad').length") == 1
    # What is ticked is saved as readers of episodes take it.
    shown.press("x")
    saved = shown.ask("""new Promise(done => {
      URL.createObjectURL = blob => { blob.text().then(done); return "#"; };
      document.querySelector(".save").click();
    })""")
    keep = tmp_path / "keep.txt"
    keep.write_text(saved)
    kept = choose_episodes("test", 1003, keep)
    assert kept.tolist() == [0, *range(2, 1003)]
    shown.ask("document.querySelector('.tools button').click()")  # Unticks suspects.
    kept_now = shown.ask("document.querySelector('.save').textContent")
    assert 800 < int(re.search(r"\d+", kept_now)[0]) < 1000
    for dark in (True, False):
      shown.resize(800, 900, dark)
    assert shown.complaints() == []
