"""Several robots in one model: layouts, masks, shares, exports, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import re
import shutil
import signal
import socket
import threading
import time

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import cli, data, errors, lite, policies, serving, statistics, store, zoo
from t2r_seq.episodes import open_episodes
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.statistics.pooling import pool_statistics
from t2r_seq.zoo.embodiments import design_embodiments, shared_signature
from t2r_seq.zoo.train import configure_policy
from tests.records import rlds_data

STATE, ACTION, CAMERA = "observation.state", "action", "observation.images."
FAST = [
  "ImageEncoder.num_filters = 4",
  "ImageEncoder.num_block_layers = 1",
  "ImageEncoder.num_points = 2",
  "MLPModel.hidden_sizes = (8, 8)",
  "MLPModel.image_size = (8, 8)",
  "MLPModel.chunk_size = 2",
]


class Reach(gymnasium.Env):
  """An episode of one step, which succeeds."""

  def __init__(self, state, action, camera=None):
    box = gymnasium.spaces.Box
    spaces = {"state": box(-9, 9, (state,), np.float32)}
    if camera:
      spaces[camera] = box(0, 255, (8, 10, 3), np.uint8)
    self.observation_space = gymnasium.spaces.Dict(spaces)
    self.action_space = box(-9, 9, (action,), np.float32)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.observation_space.seed(seed)
    return self.observation_space.sample(), {}

  def step(self, action):
    assert action in self.action_space
    size = len(action)
    return self.reset()[0], size, True, False, {"is_success": size == 5}


ENVS = {"ur5": "T2RTestUr5-v0", "franka": "T2RTestFranka-v0"}
gymnasium.register(ENVS["ur5"], Reach, kwargs={"state": 3, "action": 2})
gymnasium.register(
  ENVS["franka"], Reach, kwargs={"state": 4, "action": 5, "camera": "wrist"}
)


def write_robot(
  path, state, action, cameras=(), hertz=10, episodes=3, steps=8, seed=0, **metadata
):
  """Writes a store of random episodes, whose scale depends on the robot."""
  rng = np.random.default_rng([seed, action])
  columns = {
    STATE: Spec((state,), np.float32, STATE, is_sequence=True),
    ACTION: Spec((action,), np.float32, ACTION, is_sequence=True),
  }
  for name in cameras:
    columns[name] = Spec((8, 10, 3), np.uint8, name, is_sequence=True)
  with store.EpisodeStore.create(
    str(path), columns, {"fps": hertz, **metadata}
  ) as writer:
    for _ in range(episodes):
      episode = {
        name: rng.normal(action, state, (steps, *spec.shape)).astype(np.float32)
        if spec.dtype == tf.float32
        else rng.integers(0, 256, (steps, *spec.shape), np.uint8)
        for name, spec in columns.items()
      }
      writer.append_episode(episode)
  return str(path)


def make_robots(paths):
  """Returns the robots of stores by name, with statistics beside the stores."""
  for path in paths.values():
    statistics.compute_statistics(path).save(f"{path}.json")
  return design_embodiments(
    {name: zoo.find_signature(open_episodes(path)) for name, path in paths.items()},
    {name: f"{path}.json" for name, path in paths.items()},
    dict.fromkeys(paths),
  )


def make_model(robots, signature=None, **options):
  """Returns a model of the robots, of the size of a signature if there is one."""
  signature = signature or shared_signature(robots)
  signature = dataclasses.replace(signature, embodiments=robots)
  options = {"hidden_sizes": (8, 8), "image_size": (8, 8), "chunk_size": 2, **options}
  return zoo.MLPModel(signature=signature, statistics_path="", **options)


def make_mixture(paths, robots, **options):
  sources = {name: data.EpisodesInputGenerator(path) for name, path in paths.items()}
  return data.MixtureInputGenerator(sources, embodiments=robots, **options)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """Returns the stores of two robots by name."""
  folder = tmp_path_factory.mktemp("two")
  return {
    "ur5": write_robot(folder / "ur5", 3, 2),
    "franka": write_robot(folder / "franka", 4, 5, [CAMERA + "wrist"], 20),
  }


def test_shared_signature_is_in_the_order_in_which_gin_writes_it(tmp_path):
  """Else `verify`, which builds the network by the config, has another mask."""
  paths = {
    "first": write_robot(tmp_path / "first", 3, 2, [CAMERA + "wrist"]),
    "second": write_robot(
      tmp_path / "second", 3, 2, [CAMERA + "front", CAMERA + "top"]
    ),
  }
  robots = make_robots(paths)
  signature = shared_signature(robots)
  assert [*signature.cameras] == [CAMERA + name for name in ("front", "top", "wrist")]
  assert [*signature.states] == sorted(signature.states)


@pytest.fixture(scope="module")
def run(two, tmp_path_factory):
  """Trains one policy of two robots by the command line; returns its folder."""
  folder = tmp_path_factory.mktemp("robots") / "run"
  argv = ["train", "--policy", "mlp", "--size", "tiny", "--dataset", *two.values()]
  argv += ["--env", *(f"{name}={env}" for name, env in ENVS.items())]
  argv += ["--model_dir", str(folder), "--steps", "1"]
  argv += ["--gin_bindings", *FAST, "ClosedLoopEvaluation.num_episodes = 2"]
  with contextlib.redirect_stdout(io.StringIO()) as out:
    assert cli.main(argv) == 0
  (folder / "out.txt").write_text(out.getvalue())
  return folder


def test_one_command_trains_two_robots_and_reports_each(run, read_events):
  events = sorted(path.name for path in run.glob("eval*"))
  assert events == ["eval_callbacks", "eval_franka", "eval_ur5"]
  assert (run / "robots/ur5/statistics.json").exists()
  success = {"": 0.5, "franka/": 1, "ur5/": 0}
  last, seen = (run / "out.txt").read_text(), read_events(run / "eval_callbacks")
  for robot, rate in success.items():
    name = f"closed_loop/{robot}success_rate"
    assert seen[name][2] == rate and f"{name} {rate}" in last, last
  for name in ("ur5/loss", "franka/action_error"):
    assert f"{name} " in last
  best = (run / "export/best/best.json").read_text()
  assert "closed_loop/success_rate" in best


@pytest.mark.parametrize("name, size", [("ur5", 2), ("franka", 5)])
def test_evaluate_runs_a_robot_in_its_environment(run, name, size, capsys):
  argv = ["evaluate", str(run / "export/best"), "--env", ENVS[name]]
  assert cli.main([*argv, "--robot", name, "--episodes", "2"]) == 0
  out, _ = capsys.readouterr()
  rate = "100%" if size == 5 else "0%"
  assert f"| {rate} |" in out and f"| {size}.00 |" in out


BAD_ENVS = {
  "no robot": (["T2RTestUr5-v0"], "the name of a robot and its environment, NAME=ID"),
  "another robot": (["ur3=T2RTestUr5-v0"], "got 'ur3'. Did you mean 'ur5'?"),
  "no name": (["ur5=T2RTestUr5-v0", "X-v0"], "expected ROBOT=NAME, got 'X-v0'"),
  "that of the other": (
    ["franka=T2RTestUr5-v0"], "observation.state: expected one observation that is (4,)"
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ENVS)
def test_environments_that_do_not_fit_are_refused(two, tmp_path, capsys, name):
  envs, want = BAD_ENVS[name]
  argv = ["train", "--policy", "mlp", "--dataset", *two.values(), "--env", *envs]
  assert cli.main([*argv, "--model_dir", str(tmp_path / "run")])
  _, err = capsys.readouterr()
  assert want in " ".join(err.split()), err
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name, size", [("ur5", 2), ("franka", 5)])
def test_one_export_acts_for_each_robot(run, two, tmp_path, name, size):
  predictor = policies.ExportedSavedModelPredictor(
    run / "export/latest", timeout=0, robot=name
  )
  predictor.restore()
  spec = predictor.get_step_specification()
  assert (CAMERA + "wrist" in spec) == (name == "franka")
  observation = {
    path: np.zeros((1, *each.shape), each.dtype.as_numpy_dtype)
    for path, each in spec.items()
  }
  action = predictor.step(observation)["inference_output"]
  assert action.shape == (1, size)
  # In the robot's units: its actions have the mean `size`.
  assert abs(action.mean() - size) < 3 * (3 if name == "ur5" else 4)
  assert predictor.control_period == pytest.approx(0.1 if name == "ur5" else 0.05)
  # The same weights, loaded once for all robots. A step reads no file.
  folder = shutil.copytree(run / "export/latest", tmp_path / "exports")
  robots = policies.RobotPolicies(folder)
  shutil.move(folder, tmp_path / "moved")
  state = robots.initial_state(robot=name)
  outputs, _ = robots.step(observation, state, is_first=True, robot=name)
  np.testing.assert_array_equal(outputs["inference_output"], action)
  shutil.move(tmp_path / "moved", folder)
  with pytest.raises(errors.SpecError, match=r"one of \[franka, ur5\], got 'ur3'"):
    robots.step(observation, state, robot="ur3")


@pytest.mark.parametrize("name", ["ur5", "franka"])
def test_verify_compares_the_export_with_the_training_of_a_robot(
  run, two, name, capsys
):
  export = str(run / "export/latest")
  status = cli.main(["verify", export, two[name], "--robot", name, "--episodes", "1"])
  out, err = capsys.readouterr()
  assert status == 0 and "network inputs" in out, out + err


def test_lite_folder_of_a_robot_takes_its_observations(run, tmp_path, capsys):
  pytest.importorskip("ai_edge_litert")
  export, out = str(run / "export/latest"), str(tmp_path / "ur5")
  assert cli.main(["export", "--lite", export, out, "--robot", "ur5"]) == 0
  policy = lite.LitePolicy(out)
  assert policy.step({STATE: np.zeros(3, np.float32)})["inference_output"].shape == (2,)


@pytest.fixture
def keep_signals():
  """Restores the handlers that `t2r_seq serve` replaces."""
  handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
  yield
  for number, handler in handlers.items():
    signal.signal(number, handler)


@pytest.mark.usefixtures("keep_signals")
@pytest.mark.parametrize("name, size", [("ur5", 2), ("franka", 5)])
def test_serve_acts_for_a_robot(run, name, size, capsys):
  pytest.importorskip("websockets")
  pytest.importorskip("msgpack")
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  found = []

  def act():
    """Acts once the server listens, and stops it."""
    try:
      for _ in range(600):
        with contextlib.suppress(ConnectionError):
          client = serving.PolicyClient(port=port)
          break
        time.sleep(0.1)
      with contextlib.closing(client):
        zeros = {STATE: np.zeros(3 if name == "ur5" else 4, np.float32)}
        zeros |= {CAMERA + "wrist": np.zeros((8, 10, 3), np.uint8)} if size == 5 else {}
        found.append(client.sample_action(zeros)[0])
    finally:
      os.kill(os.getpid(), signal.SIGTERM)

  robot = threading.Thread(target=act)
  signal.signal(signal.SIGTERM, lambda *_: None)  # Until the server has its own.
  robot.start()
  argv = ["serve", str(run / "export/latest"), "--robot", name, "--port", str(port)]
  assert cli.main(argv) == 0
  robot.join()
  assert found[0].shape == (size,)
  assert "serve: stopped" in capsys.readouterr().out


def test_inspect_shows_each_robot(run, capsys):
  assert cli.main(["inspect", str(run / "export/latest")]) == 0
  out, _ = capsys.readouterr()
  assert "for the robot ur5: --robot ur5" in out
  assert "for the robot franka: --robot franka" in out


@pytest.mark.usefixtures("keep_signals")
@pytest.mark.parametrize(
  "argv",
  [
    ["verify", "EXPORT", "DATA"],
    ["export", "--lite", "EXPORT", "OUT"],
    ["serve", "EXPORT", "--port", "0"],
    ["evaluate", "EXPORT", "--env", ENVS["ur5"]],
  ],
)
@pytest.mark.parametrize("name, got", [("ur3", "'ur3'"), (None, "None")])
def test_unknown_robot_is_refused_with_the_list(
  run, two, tmp_path, capsys, argv, name, got
):
  places = {
    "EXPORT": str(run / "export/latest"), "DATA": two["ur5"], "OUT": str(tmp_path / "o")
  }  # fmt: skip
  argv = [places.get(each, each) for each in argv] + (["--robot", name] if name else [])
  assert cli.main(argv) == 1
  _, err = capsys.readouterr()
  err = " ".join(err.split())
  assert f"robot: expected one of [franka, ur5], got {got}." in err


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
  """Returns the stores of 20 robots: 3 to 32 elements, 1 to 4 cameras, 10 to 60 Hz."""
  folder = tmp_path_factory.mktemp("twenty")
  paths = {}
  for i in range(20):
    size = 3 + (29 * i) // 19
    cameras = [f"{CAMERA}{role}" for role in range(1 + i % 4)]
    rate = 10 + (50 * i) // 19
    paths[f"r{i}"] = write_robot(folder / f"r{i}", size, size, cameras, rate, 2 + i % 3)
  return paths


def test_twenty_robots_share_each_batch_exactly(twenty, caplog):
  caplog.set_level(logging.INFO)
  robots = make_robots(twenty)
  model = make_model(robots, image_transforms=[], image_size=None)
  weights = {name: 1 + i % 2 for i, name in enumerate(twenty)}
  mixture = make_mixture(
    twenty, robots, weights=weights, batch_size=30, memory_budget=2**24, seed=3
  )
  mixture.set_specification_from_model(model, "train")
  batches = [*mixture.create_dataset("train").take(3)]
  for features, labels in batches:
    ids = features["robot/id"].numpy()[:, 0]
    np.testing.assert_array_equal(ids.sum(0)[:20], [*weights.values()])
    owner = ids.argmax(1)
    sizes = np.array([3 + (29 * i) // 19 for i in owner])
    mask = labels["target_dimension_mask"].numpy()
    np.testing.assert_array_equal(mask.sum(1), sizes)
    assert not labels["target"].numpy()[~mask[:, None].repeat(2, 1)].any()
    cameras = features["robot/mask"].numpy()[:, 0, -4:]
    np.testing.assert_array_equal(cameras.sum(1), 1 + owner % 4)
    for role in range(4):
      shown = features[f"{CAMERA}{role}"].numpy().any((1, 2, 3, 4))
      np.testing.assert_array_equal(shown, cameras[:, role] > 0)
  # One budget: each source has its share of it.
  logged = re.findall(r"of the budget of (\d+)\.", caplog.text)
  assert len(logged) == 20 and 0.99 * 2**24 < sum(map(int, logged)) <= 2**24


RESUMED = {"equal": (None, 5), "by episodes": ("by_episode", 4), "3 to 1": ((3, 1), 3)}


@pytest.mark.parametrize("name", RESUMED)
def test_resumes_at_the_number_of_a_step(two, name):
  weights, batch_size = RESUMED[name]
  robots = make_robots(two)
  mixture = make_mixture(two, robots, weights=weights, batch_size=batch_size, seed=3)
  model = make_model(robots, image_transforms=[], image_size=None)
  mixture.set_specification_from_model(model, "train")
  (want, _), *_ = mixture.create_dataset("train").skip(3).take(1)
  (got, _), *_ = mixture.create_dataset("train", start_step=3).take(1)
  for path, value in want.items():
    np.testing.assert_array_equal(got[path], value)


def test_explain_shows_what_a_batch_has_of_each_robot(two):
  robots = make_robots(two)
  mixture = make_mixture(two, robots, weights=(3, 1), batch_size=6)
  model = make_model(robots, image_transforms=[], image_size=None)
  mixture.set_specification_from_model(model, "train")
  ur5, franka = mixture.explain(num_batches=1).sources
  assert ur5 == (
    "ur5: 4.5 of 6 examples a batch (75.0%); 10 steps/s; robot ur5, id 0; "
    "observation.state 3 of 4, action 2 of 5; cameras none, masked "
    f"observation.images.wrist; statistics {two['ur5']}.json"
  )
  assert "20 steps/s" in franka and "cameras observation.images.wrist;" in franka


def test_description_of_a_sequence_model_lists_cameras_that_a_robot_lacks(two):
  robots = make_robots(two)
  signature = dataclasses.replace(shared_signature(robots), embodiments=robots)
  model = zoo.LSTMModel(signature=signature, statistics_path="", image_size=(8, 8))
  described = robots["ur5"].describe(model.get_feature_specification("train"))
  assert described[2] == f"cameras none, masked {CAMERA}wrist"


@pytest.fixture(scope="module")
def built(two):
  """Returns (robots, a built model of both)."""
  robots = make_robots(two)
  with tf.device("cpu:0"):
    tf.keras.utils.set_random_seed(1)
    model = make_model(robots)
    model.build()
  return robots, model


def test_eval_loss_of_a_robot_equals_that_of_a_run_of_it_alone(two, built):
  robots, model = built
  together = {
    name: next(iter(_evaluated(model, generator)))
    for name, generator in make_mixture(two, robots).named_evals().items()
  }
  for name, path in two.items():
    alone = model.as_robot(name)
    generator = data.EpisodesInputGenerator(path)
    assert next(iter(_evaluated(alone, generator))) == together[name]
  assert together["ur5"] != together["franka"]


def _evaluated(model, generator):
  generator.set_specification_from_model(model, "eval")
  for features, labels in generator.create_dataset("eval"):
    features, labels = model.pack(features, labels, "eval")
    outputs = model.inference_network_fn(features, labels, "eval")
    yield float(model.model_eval_fn(features, labels, outputs, "eval")["loss"])


def test_padded_elements_have_no_gradient(two, built):
  robots, model = built
  mixture = make_mixture({"ur5": two["ur5"]}, {"ur5": robots["ur5"]}, batch_size=4)
  mixture.set_specification_from_model(model, "train")
  features, labels = next(iter(mixture.create_dataset("train")))

  def gradients(target):
    given = {**labels, "target": target}
    packed = model.pack(features, given, "train")
    with tf.GradientTape() as tape:
      outputs = model.inference_network_fn(*packed, "train")
      loss, scalars = model.model_train_fn(*packed, outputs, "train")
    assert scalars["ur5/loss"] == loss and scalars["franka/loss"] == 0
    return loss, tape.gradient(loss, model.trainable_variables)

  loss, before = gradients(labels["target"])
  padded = ~labels["target_dimension_mask"].numpy()[:, None].repeat(2, 1)
  other, after = gradients(labels["target"] + 1e6 * padded)
  assert loss == other and padded.any()
  for one, two_ in zip(before, after, strict=True):
    np.testing.assert_array_equal(one, two_)
  # The columns of the last layer that make padded elements.
  kernel = next(g for g in before if g.shape[-1] == 10).numpy().reshape(8, 2, 5)
  assert not kernel[..., 2:].any() and kernel[..., :2].any()


def test_statistics_are_pooled_by_count(tmp_path):
  paths = [
    write_robot(tmp_path / "a", 3, 2, episodes=2),
    write_robot(tmp_path / "b", 3, 2, episodes=5, seed=1),
  ]
  found = [statistics.compute_statistics(path) for path in paths]
  pooled = pool_statistics(found).paths[ACTION]
  values = np.concatenate([e.values[ACTION] for p in paths for e in open_episodes(p)])
  np.testing.assert_allclose(pooled.mean, values.mean(0), rtol=1e-6)
  np.testing.assert_allclose(pooled.std, values.std(0), rtol=1e-6)
  np.testing.assert_array_equal(pooled.max, values.max(0))
  near = np.quantile(values, 0.5, axis=0)
  np.testing.assert_allclose(pooled.quantiles[0.5], near, atol=0.5 * values.std())


@pytest.mark.parametrize("other", [(10, 20), (-20, -10), (-1, 1)])
def test_pooled_quantiles_of_a_constant(tmp_path, other):
  """A constant has all of its values at one point, between, below or above others."""
  spec = {"x": Spec((1,), "float32", "x", is_sequence=True)}
  parts = [np.zeros(1000), np.linspace(*other, 1000)]
  for name, values in zip("ab", parts, strict=True):
    with store.EpisodeStore.create(str(tmp_path / name), spec) as writer:
      writer.append_episode({"x": values[:, np.newaxis].astype(np.float32)})
  found = [statistics.compute_statistics(str(tmp_path / name)) for name in "ab"]
  pooled = pool_statistics(found).paths["x"].quantiles
  expected = {q: np.quantile(np.concatenate(parts), q) for q in pooled if q != 0.5}
  for q, value in expected.items():
    np.testing.assert_allclose(pooled[q], value, atol=0.05, err_msg=str(q))


def changed(robots, robot, **fields):
  return {**robots, robot: dataclasses.replace(robots[robot], **fields)}


ERRORS = {
  "two robots of one name": (
    lambda paths, robots: make_mixture(paths, changed(robots, "franka", name="ur5")),
    "embodiments: franka: expected one robot of each name, got another robot 'ur5'",
  ),
  "two robots of one id": (
    lambda paths, robots: make_model(changed(robots, "franka", id=0)),
    "franka: id: expected another one than that of 'ur5', got 0",
  ),
  "a vector that is too large": (
    lambda paths, robots: make_model(
      {"ur5": changed(robots, "ur5", layout={ACTION: (0, 4)})["ur5"]},
      shared_signature({"ur5": robots["ur5"]}),
    ),
    "ur5: action: expected at most 2 elements, the size of the model's 'action', got 5",
  ),
  "a role that no robot has": (
    lambda paths, robots: make_model(
      changed(robots, "franka", paths={CAMERA + "wrist": "front"}),
      shared_signature(robots),
    ),
    "franka: observation.images.wrist: expected one of the model's cameras [obs",
  ),
  "a robot that the model lacks": (
    lambda paths, robots: make_mixture(
      paths, changed(robots, "ur5", name="ur3")
    ).set_specification_from_model(make_model(robots), "train"),
    "embodiments: ur5: expected one of the model's robots [franka, ur5], got 'ur3'",
  ),
  "a source without a robot": (
    lambda paths, robots: make_mixture(paths, {"ur5": robots["ur5"]}),
    "embodiments: franka: expected an Embodiment, got none",
  ),
  "an unknown path": (
    lambda paths, robots: changed(robots, "ur5", layout={"actoin": (0,)}),
    "Embodiment: ur5: actoin: expected one of the robot's paths",
  ),
  "one place for two elements": (
    lambda paths, robots: changed(robots, "ur5", layout={ACTION: (0, 0)}),
    "layout: action: expected a different place for each element, got [0, 0]",
  ),
  "statistics of another representation": (
    lambda paths, robots: make_model(
      changed(robots, "ur5", statistics=[f"{p}.json" for p in paths.values()])
    ).as_robot("ur5").preprocessor,
    "pool statistics: 3 mismatches: action of file 2: expected (2,) float32",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_bad_robots_are_refused(two, name):
  make, want = ERRORS[name]
  robots = make_robots(two)
  with pytest.raises(errors.SpecError) as error:
    make(two, robots)
  assert want in " ".join(str(error.value).split())


def test_robot_can_be_added_and_the_others_keep_their_numbers(two, built):
  robots, model = built
  added = {**robots, "third": dataclasses.replace(robots["ur5"], name="third", id=2)}
  more = make_model(added, model.signature)  # The weights have the same shapes.
  more.build()
  more.take_weights({k: v.numpy() for k, v in model.named_variables.items()}, 0)
  features = {STATE: np.ones((1, 1, 3), np.float32)}
  before = model.as_robot("ur5").export_outputs(features)["inference_output"]
  after = more.as_robot("ur5").export_outputs(features)["inference_output"]
  np.testing.assert_array_equal(before, after)
  other = more.as_robot("third").export_outputs(features)["inference_output"]
  assert np.abs(other - after).max() > 0  # Another id.


def test_fine_tuning_on_a_new_robot_keeps_the_numbers_of_the_others(run, two, tmp_path):
  third = write_robot(tmp_path / "third", 3, 2, seed=5)
  argv = ["train", "--policy", "mlp", "--size", "tiny", "--steps", "1"]
  argv += ["--dataset", *two.values(), third, "--model_dir", str(tmp_path / "run")]
  argv += ["--gin_bindings", *FAST]
  argv += [
    "MLPModel.init_from_checkpoint_fn = @default_init_from_checkpoint_fn",
    f"default_init_from_checkpoint_fn.checkpoint = {str(run)!r}",
    "train/MixtureInputGenerator.sources = "
    "{'third': @third/train/EpisodesInputGenerator()}",
    "train/MixtureInputGenerator.embodiments = {'third': @third/Embodiment()}",
    "BATCH_SIZE = 8",
    "LEARNING_RATE = 0.0",  # Only training changes how the others act.
  ]
  assert cli.main(argv) == 0
  before = policies.RobotPolicies(run / "export/latest")
  after = policies.RobotPolicies(tmp_path / "run/export/latest")
  assert after.robots == ["ur5", "franka", "third"]

  def act(robots, name):
    spec = robots.of(name).step_specification().items()
    zeros = {p: np.zeros((1, *s.shape), s.dtype.as_numpy_dtype) for p, s in spec}
    state = robots.initial_state(robot=name)
    return robots.step(zeros, state, True, name)[0]["inference_output"]

  for name in before.robots:
    np.testing.assert_array_equal(act(after, name), act(before, name))
  assert np.abs(act(after, "third") - act(after, "ur5")).max() > 0


def test_inspect_shows_what_the_batches_of_a_run_hold(run, capsys):
  config = next(iter(run.glob("operative_config-*.gin")))
  assert cli.main(["inspect", "--gin_configs", str(config)]) == 0
  out, _ = capsys.readouterr()
  assert "20 steps/s; robot franka, id 1; observation.state 4 of 4" in out


@pytest.mark.parametrize("is_indexed", [True, False])
def test_rlds_is_one_of_several_robots(two, tmp_path, capsys, is_indexed):
  file = tmp_path / "tiny-train.tfrecord-00000-of-00001"
  shutil.copy(f"{rlds_data.FOLDER}/{file.name}", file)
  for name in ("features.json", "dataset_info.json"):
    shutil.copy(f"{rlds_data.FOLDER}/{name}", tmp_path / name)
  if is_indexed:
    assert cli.main(["index", str(file)]) == 0
  argv = ["train", "--policy", "mlp", "--size", "tiny", "--steps", "1"]
  argv += ["--dataset", two["franka"], str(file), "--model_dir", str(tmp_path / "run")]
  status = cli.main([*argv, "--gin_bindings", *FAST])
  _, err = capsys.readouterr()
  assert status == (not is_indexed), err
  if not is_indexed:
    assert "Write an index of TFRecord files, t2r_seq index" in " ".join(err.split())
    return
  robots = policies.RobotPolicies(tmp_path / "run/export/latest")
  spec = robots.of("tiny_train").step_specification()
  assert {"observation/state", "observation/image"} <= {*spec}
  argv = ["verify", str(tmp_path / "run/export/latest"), str(file), "--no_model"]
  assert cli.main([*argv, "--robot", "tiny_train"]) == 0


def test_data_sets_of_one_robot_share_it_and_pool_their_statistics(tmp_path):
  paths = [
    write_robot(tmp_path / "monday", 3, 2, robot="so100"),
    write_robot(tmp_path / "friday", 3, 2, robot="so100"),
    write_robot(tmp_path / "other", 4, 3, robot="ur5"),
  ]
  text = configure_policy("mlp", paths, tmp_path / "run", "tiny", is_dry=True)
  for line in (
    "monday/Embodiment.name = 'so100'",
    "friday/Embodiment.name = 'so100'",
    "other/Embodiment.name = 'ur5'",
    "other/Embodiment.id = 1",
    "Signature.action_size = 3",
  ):
    assert f"# {line}\n" in text, line
  files = [
    f"{tmp_path}/run/robots/{name}/statistics.json" for name in ("monday", "friday")
  ]
  assert f"# friday/Embodiment.statistics = {files!r}\n" in text
