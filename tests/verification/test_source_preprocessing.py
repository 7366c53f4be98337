"""What the input does before the model's preprocessor: listed, exported, verified."""

from __future__ import annotations

import functools
import glob
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  data,
  errors,
  models,
  policies,
  preprocessors,
  records,
  replay,
  specs,
  statistics,
  training,
  verification,
)
from t2r_seq.data.record_input_generator import MultiEvalInputGenerator
from t2r_seq.store import EpisodeStore

_SPEC = specs.ExtendedTensorSpec
_MODES = {"state": "mean_std", "target": "mean_std"}
CROP = (2, 1, 4, 5)


class Model(models.RegressionModel):
  """One number, and perhaps a camera."""

  image_shape: tuple[int, ...] | None = None

  def get_feature_specification(self, mode):
    spec = {"state": _SPEC((1,), tf.float32, "state", time_offsets=0)}
    if self.image_shape is not None:
      image = functools.partial(_SPEC, time_offsets=0, data_format="png")
      spec["camera"] = image(self.image_shape, tf.uint8, "camera")
    return specs.TensorSpecStruct(spec)

  def get_label_specification(self, mode):
    target = _SPEC((1,), tf.float32, "action", time_offsets=0)
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def a_func(self, features, mode):
    seen = features.state
    if self.image_shape is not None:
      pixels = tf.cast(features.camera, tf.float32)
      seen += tf.reduce_mean(pixels, axis=[1, 2])[:, :1] / 255
    return {"inference_output": self.network(seen)}


class CroppedModel(Model):
  """Sees a part of the camera's images."""

  image_shape = (4, 5, 3)


class ResizedModel(Model):
  """Sees smaller images."""

  image_shape = (3, 3, 3)


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
  """Three stores of other scales, with their statistics; one has images."""
  folder = tmp_path_factory.mktemp("sources")
  rng = np.random.default_rng(0)
  for name, scale in (("lab", 1.0), ("sim", 100.0), ("old", 10.0)):
    flat = {
      k: _SPEC((1,), tf.float32, k, is_sequence=True) for k in ("state", "action")
    }
    if name == "lab":
      flat["camera"] = _SPEC(
        (8, 9, 3), tf.uint8, "camera", is_sequence=True, data_format="png"
      )
    episodes = []
    with EpisodeStore.create(str(folder / name), flat) as writer:
      for _ in range(2):
        x = (rng.normal(size=(6, 1)) * scale).astype(np.float32)
        episode = {"state": x, "action": 3 * x}
        if name == "lab":
          episode["camera"] = [
            tf.io.encode_png(image).numpy()
            for image in rng.integers(0, 255, (6, 8, 9, 3), np.uint8)
          ]
        writer.append_episode(episode)
        episodes.append(episode)
    records.write_records(str(folder / f"{name}.tfrecord"), flat, episodes)
    statistics.compute_statistics(str(folder / name), str(folder / f"{name}.json"))
  return folder


def _normalize(folder, name):
  return functools.partial(
    preprocessors.Normalize, statistics_path=str(folder / f"{name}.json"), modes=_MODES
  )


class _Shifted(preprocessors.NoOpPreprocessor):
  """Adds one to the state."""

  def _preprocess_fn(self, features, labels, mode):
    features.state = features.state + 1
    return features, labels


def _store(folder, name, **options):
  return data.StoreInputGenerator(str(folder / name), batch_size=2, seed=0, **options)


def _mix(folder, preprocessors_by_name=None, names=("lab", "sim"), **sources):
  sources = {**{name: _store(folder, name) for name in names}, **sources}
  return data.MixtureInputGenerator(
    sources, batch_size=4, preprocessors=preprocessors_by_name or {}
  )


def _doubled(features, labels):
  return {**features, "state": 2 * features["state"]}, labels


def _own(folder, fn=_doubled, with_specs=False):
  """A mixture whose source 'sim' has a preprocess_fn."""
  source = _store(folder, "sim")
  if with_specs:
    source.set_feature_specifications(Model().get_feature_specification("train"))
    source.set_label_specifications(Model().get_label_specification("train"))
  source.set_preprocess_fn(fn)
  return _mix(folder, names=["lab"], sim=source)


def _of_a_model(folder):
  """A mixture with a source that has specs and preprocessing from another model."""
  source = _store(folder, "sim")
  model = Model(preprocessor_cls=_normalize(folder, "sim"))
  source.set_specification_from_model(model, "train")
  return _mix(folder, names=["lab"], sim=source)


def _nested(folder):
  inner = _mix(folder, {"sim": _normalize(folder, "sim")})
  return _mix(folder, {"old": _normalize(folder, "old")}, names=["old"], real=inner)


def _twice(folder):
  """A mixture in a mixture, with statistics of what is stored for both."""
  inner = _mix(folder, {"sim": _normalize(folder, "sim")})
  return _mix(folder, {"real": _normalize(folder, "lab")}, names=["old"], real=inner)


def _wrapped(folder, name):
  return functools.partial(
    preprocessors.TPUPreprocessorWrapper, preprocessor_cls=_normalize(folder, name)
  )


def _replay(folder):
  spec = Model().get_feature_specification("train")
  buffer = replay.ReplayBuffer(
    {**spec, "action": Model().get_label_specification("train").target}, 100
  )
  online = replay.ReplayInputGenerator(buffer)
  return _mix(folder, {"online": _normalize(folder, "sim")}, ["lab"], online=online)


class _Setting(data.StoreInputGenerator):
  """A generator of a user, which replaces the model's preprocessing."""

  def set_specification_from_model(self, t2r_model, mode):
    super().set_specification_from_model(t2r_model, mode)
    self.set_preprocess_fn(_doubled)


def _decoding(**options):
  return records.ImageDecoding(**options)


# An input generator, and the stages of each source.
STAGES = {
  "a store": (lambda f: _store(f, "lab"), {"": []}),
  "a mixture": (_mix, {"lab": [], "sim": []}),
  "preprocessors by source": (
    lambda f: _mix(f, {name: _normalize(f, name) for name in ("lab", "sim")}),
    {"lab": ["Normalize"], "sim": ["Normalize"]},
  ),
  "a preprocessor of one source": (
    lambda f: _mix(f, {"sim": _normalize(f, "sim")}), {"lab": [], "sim": ["Normalize"]},
  ),
  "a preprocessor that changes nothing": (
    lambda f: _mix(f, {"sim": preprocessors.NoOpPreprocessor}), {"lab": [], "sim": []},
  ),
  "a chain": (
    lambda f: _mix(f, {"sim": functools.partial(
      preprocessors.ComposedPreprocessor,
      preprocessor_classes=[_normalize(f, "sim"), _Shifted],
    )}),
    {"lab": [], "sim": ["Normalize", "_Shifted"]},
  ),
  "a mixture in a mixture": (
    _nested,
    {"old": ["Normalize"], "real/lab": [], "real/sim": ["Normalize"]},
  ),
  "a replay": (_replay, {"lab": [], "online": ["Normalize"]}),
  "a function of a source": (_own, {"lab": [], "sim": ["_doubled"]}),
  "a function of a source with specs": (
    lambda f: _own(f, with_specs=True), {"lab": [], "sim": ["_doubled"]},
  ),
  "a source with the preprocessing of a model": (
    _of_a_model, {"lab": [], "sim": ["Normalize"]},
  ),
  "a class that replaces the model's": (
    lambda f: _Setting(str(f / "lab")), {"": ["_doubled"]},
  ),
  "crops": (
    lambda f: _store(f, "lab", image_decoding=_decoding(crops={"camera": CROP})),
    {"": ["ImageDecoding"]},
  ),
  "resized": (
    lambda f: _store(f, "lab", image_decoding=_decoding(resized=["camera"])),
    {"": ["ImageDecoding"]},
  ),
  "records that are cropped": (
    lambda f: data.DefaultRecordInputGenerator(
      "none", image_decoding=_decoding(crops={"camera": CROP})
    ),
    {"": ["ImageDecoding"]},
  ),
  "faster decoding is no stage": (
    lambda f: _store(f, "lab", image_decoding=_decoding(dct_method="INTEGER_FAST")),
    {"": []},
  ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAGES)
def test_stages_before_the_preprocessor_are_listed_by_source(folder, case):
  make, want = STAGES[case]
  generator = make(folder)
  for mode in ("train", "eval"):  # Setting the specs again changes nothing.
    generator.set_specification_from_model(Model(), mode)
    found = generator.source_preprocessing(mode)
    names = {name: [s["stage"] for s in stages] for name, stages in found.items()}
    assert names == want


# name: an input generator; the model's preprocessor; source and path that are named.
TWICE = {
  "inside and outside a mixture": (_twice, None, "sim: features/state"),
  "of three mixtures": (
    lambda f: _mix(f, {}, ["old"], all=_twice(f)), None, "sim: features/state",
  ),
  "in the model, too": (
    STAGES["preprocessors by source"][0], _normalize, "lab: features/state",
  ),
  "in the model, too, for TPUs": (
    STAGES["a preprocessor of one source"][0], _wrapped, "sim: features/state",
  ),
  "inside, and in the model": (_nested, _normalize, "old: features/state"),
  "a source with the preprocessing of a model": (
    _of_a_model, _normalize, "sim: features/state",
  ),
}  # fmt: skip


@pytest.mark.parametrize("case", TWICE)
def test_values_that_are_normalized_twice_are_refused(folder, case):
  make, make_preprocessor, named = TWICE[case]
  options = {}
  if make_preprocessor is not None:
    options["preprocessor_cls"] = make_preprocessor(folder, "lab")
  generator = make(folder)
  generator.set_specification_from_model(Model(**options), "train")
  want = f"{named}: expected values that are normalised once, got a stage Normalize"
  for act in (generator.source_preprocessing, generator.create_dataset):
    with pytest.raises(errors.SpecError, match=want):
      act("train")


def test_preprocess_fn_of_a_source_without_specs_is_called(folder):
  mixture = _own(folder)
  mixture.set_specification_from_model(Model(), "eval")
  batches = [labels.target / features.state for features, labels in
             mixture.create_dataset("eval")]  # fmt: skip
  ratios = sorted({*np.round(np.concatenate(batches).ravel(), 3).tolist()})
  assert ratios == [1.5, 3.0]


def _with_function(folder):
  generator = _store(folder, "lab")
  generator.set_preprocess_fn(_doubled)
  return generator


def _with_function_later(folder):
  generator = _store(folder, "lab")
  generator.set_specification_from_model(Model(), "train")
  generator.set_preprocess_fn(_doubled)
  return generator


def _with_both(folder):
  mixture = _own(folder)
  return _mix(folder, {"sim": preprocessors.NoOpPreprocessor}, ["lab"],
              sim=mixture._sources["sim"])  # fmt: skip


@pytest.mark.parametrize(
  ("make", "new"),
  [
    (_with_function, "Normalize"),
    (_with_function_later, "Normalize"),
    (_with_both, "NoOpPreprocessor"),
  ],
)
def test_preprocess_fn_that_would_be_dropped_is_refused(folder, make, new):
  model = Model(preprocessor_cls=_normalize(folder, "lab"))
  want = f"preprocess_fn: expected none, .* {new}, replaces it, got _doubled. Chain"
  with pytest.raises(errors.SpecError, match=want):
    generator = make(folder)
    generator.set_specification_from_model(model, "train")
    generator.create_dataset("train")
  # The model's own, set before by hand, is the same.
  generator = _store(folder, "lab")
  generator.set_preprocess_fn(
    functools.partial(model.preprocessor.preprocess, mode="eval")
  )
  generator.set_specification_from_model(model, "train")
  assert generator.source_preprocessing("train") == {"": []}


def _train(folder, generator, model=None, async_exports=False, **options):
  model_dir = str(folder / "run")
  training.train_eval_model(
    Model() if model is None else model,
    input_generator_train=generator,
    max_train_steps=1,
    model_dir=model_dir,
    run_config=training.RunConfig(show_progress=False, async_exports=async_exports),
    **options,
  )
  (export,) = glob.glob(f"{model_dir}/export/latest/*")
  return export


def _crop(observed, begins):
  y, x, height, width = CROP
  image = observed["camera"][y : y + height, x : x + width]
  return {**observed, "camera": image}


def _resize(observed, begins):
  small = tf.image.resize(observed["camera"], (3, 3), antialias=True)
  return {**observed, "camera": tf.saturate_cast(tf.round(small), tf.uint8).numpy()}


def _read(folder, **decoding):
  path = str(folder / "lab.tfrecord")
  return data.DefaultRecordInputGenerator(path, 2, image_decoding=_decoding(**decoding))


_SAME, _BY_SOURCE = (
  r"identical",
  r"not in the export: training's input did other things",
)
_LACKS = r"not in the export: training's input applied.* Normalize of \[features/state"
_CAMERA = "crops it to .* = .2, 1, 4, 5.*--observe"
# Training's input and model, how it is verified, and what the report has.
VERIFIED = {
  "a store": (lambda f: _store(f, "lab"), Model, {}, _SAME),
  "a mixture": (_mix, Model, {}, _SAME),
  "by source": (STAGES["preprocessors by source"][0], Model, {}, _BY_SOURCE),
  "by source, one named": (
    STAGES["preprocessors by source"][0], Model, {"source": "lab"}, _LACKS,
  ),
  "the same of all sources": (
    lambda f: _mix(f, {n: _normalize(f, "lab") for n in ("lab", "sim")}), Model, {},
    _LACKS,
  ),
  "of one source": (STAGES["a preprocessor of one source"][0], Model, {}, _BY_SOURCE),
  "of another source": (
    STAGES["a preprocessor of one source"][0], Model, {"source": "lab"}, _SAME,
  ),
  "crops": (STAGES["crops"][0], CroppedModel, {}, _CAMERA),
  "crops, as on the robot": (
    STAGES["crops"][0], CroppedModel, {"observe": _crop}, _SAME,
  ),
  "crops, of records": (
    lambda f: _read(f, crops={"camera": CROP}), CroppedModel, {}, _CAMERA,
  ),
  "crops, of records, as on the robot": (
    lambda f: _read(f, crops={"camera": CROP}), CroppedModel, {"observe": _crop}, _SAME,
  ),
  "resized": (
    lambda f: _read(f, resized=["camera"]), ResizedModel, {}, "resizes it to the size",
  ),
  "resized, as on the robot": (
    lambda f: _read(f, resized=["camera"]), ResizedModel, {"observe": _resize}, _SAME,
  ),
}  # fmt: skip


@pytest.mark.parametrize("case", VERIFIED)
def test_verify_compares_what_the_input_does_or_reports_it(
  folder, case, tmp_path, caplog
):
  make, model_cls, options, want = VERIFIED[case]
  export = _train(tmp_path, make(folder), model_cls())
  is_warned = "The export holds the model's preprocessor, and nothing" in caplog.text
  record = policies.policy_model.PolicyRecord.load(export)
  assert is_warned == (record.source_preprocessing is not None)
  assert ("move it to the model's" in caplog.text) == (
    case.split(",")[0] in ("the same of all sources", "crops", "resized")
  )
  predictor = policies.ExportedSavedModelPredictor(export, timeout=0.0)
  predictor.restore()
  name = "lab.tfrecord" if "records" in case or "resized" in case else "lab"
  report = verification.verify(predictor, str(folder / name), model_cls(), **options)
  text = " ".join(str(report).split())
  assert re.search(want, text), text
  assert report.is_identical == (want == _SAME)
  assert ("identical" in text) == report.is_identical


def test_command_names_stages_that_an_export_lacks(folder, tmp_path, capsys):
  sources = {name: _normalize(folder, name) for name in ("lab", "sim")}
  export = _train(tmp_path, _mix(folder, sources), async_exports=True)
  store = str(folder / "sim")
  assert cli.main(["verify", export, store, "--no_model"]) == 1
  assert "not proven" in capsys.readouterr().out
  assert cli.main(["verify", export, store, "--no_model", "--source", "sin"]) == 1
  want = "source: expected one of [lab, sim], got 'sin'. Did you mean 'sim'?"
  assert want in " ".join(capsys.readouterr().err.split())
  assert cli.main(["inspect", export]) == 0
  shown = capsys.readouterr().out
  assert "sim: Normalize of [features/state, labels/target]" in shown
  kept = policies.policy_model.PolicyRecord.load(export).source_preprocessing["sim"][0]
  assert 50 < kept["normalization"]["features/state"]["scale"][0] < 200


def test_loop_of_the_user_exports_the_record_too(folder, tmp_path, caplog):
  model = Model()
  model.build()
  mixture = _mix(folder, {name: _normalize(folder, name) for name in ("lab", "sim")})
  mixture.set_specification_from_model(model, "train")
  for _ in range(2):
    mixture.create_dataset("train")
  assert caplog.text.count("The export holds the model's preprocessor") == 1
  export = training.export_saved_model(model, str(tmp_path), global_step=1)
  assert set(policies.policy_model.PolicyRecord.load(export).source_preprocessing) == {
    "lab",
    "sim",
  }


def test_evaluation_on_otherwise_prepared_data_is_warned_of(folder, tmp_path, caplog):
  mixture = _mix(folder, {"lab": _normalize(folder, "lab")}, ["lab"])
  evals = MultiEvalInputGenerator({"raw": _store(folder, "lab"), "same": _mix(
    folder, {"lab": _normalize(folder, "lab")}, ["lab"])})  # fmt: skip
  _train(tmp_path, mixture, input_generator_eval=evals, eval_steps=1)
  assert "raw: nothing, not lab: Normalize" in caplog.text
  # A job that only evaluates records its own input.
  caplog.clear()
  model = Model()
  training.continuous_eval(
    model, evals, str(tmp_path / "run"), max_train_steps=1, eval_steps=1
  )
  assert set(model.source_preprocessing) == {"raw", "same/lab"}
