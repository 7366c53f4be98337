"""`t2r_seq collect-eval` and `collect`, as real processes that are told to stop."""

from __future__ import annotations

import pathlib
import shutil
import signal
import time

import pytest

from t2r_seq import records, store
from tests import warm_python

PROJECT = pathlib.Path(__file__).parent / "drift_project.py"
ACTOR = """
import drift_project
collect_eval_loop.collect_env = @DriftEnv
collect_eval_loop.policy_class = @ExpertPolicy
collect_eval_loop.num_collect = 1
collect_eval_loop.wait_for_new_policy = False
collect_eval_loop.continuous = True
collect_eval_loop.max_steps = None
collect_eval_loop.root_dir = 'runs/actor'
"""
STORE = ("collect_eval_loop.sink = @StoreSink()", "StoreSink.path = 'data/store'",
         "StoreSink.spec = @episode_spec")  # fmt: skip
RECORDS = (
  "collect_eval_loop.sink = @RecordSink()",
  "RecordSink.output_path = 'data/drift.tfrecord'",
  "RecordSink.spec = @episode_spec",
  "RecordSink.episodes_per_file = 3",
)
WAIT_SECONDS = 60.0


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
  shutil.copy(PROJECT, tmp_path)
  (tmp_path / "actor.gin").write_text(ACTOR)
  return tmp_path


def _start(folder, command, *bindings):
  return warm_python.start(
    "-m", "t2r_seq", command, "--gin_configs", "actor.gin", "--gin_bindings", *bindings,
    cwd=folder,
  )  # fmt: skip


def _wait_for(condition, process):
  """Waits until something can be seen of what the process does."""
  deadline = time.monotonic() + WAIT_SECONDS
  while not condition():
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < deadline, "nothing happened"
    time.sleep(0.02)


def _num_stored(folder):
  path = folder / "data" / "store"
  return len(store.EpisodeStore(path)) if (path / "store.json").exists() else 0


def _files(folder):
  return sorted((folder / "data").glob("*.tfrecord"))


def _check_episodes(folder):
  """Checks that every stored episode is whole: five steps."""
  opened = store.EpisodeStore(folder / "data" / "store")
  assert set(opened.episode_lengths.tolist()) == {5}
  assert not store.verify_store(opened.path).problems
  return len(opened)


@pytest.mark.parametrize("kind", ["store", "records"])
def test_sigterm_ends_the_loop_and_keeps_whole_episodes(folder, kind):
  bindings = STORE if kind == "store" else RECORDS
  process = _start(folder, "collect-eval", *bindings)
  try:
    if kind == "store":
      _wait_for(lambda: _num_stored(folder) > 3, process)
    else:
      _wait_for(lambda: len(_files(folder)) > 2, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_SECONDS)
  finally:
    process.kill()
  assert process.returncode == 0, err
  assert out.startswith("Stopped by a signal at the policy of step 0: collected ")
  assert "Stopping: received SIGTERM" in err
  num_episodes = int(out.split("collected ")[1].split()[0])
  if kind == "store":
    assert _check_episodes(folder) == num_episodes
  else:
    counts = [records.inspect_records(str(p)).num_records for p in _files(folder)]
    assert sum(counts) == num_episodes
    assert set(counts[:-1]) == {3}
  assert not list((folder / "data").glob(".*"))


def test_sigkill_leaves_a_store_that_can_be_appended_to(folder):
  process = _start(folder, "collect-eval", *STORE)
  try:
    _wait_for(lambda: _num_stored(folder) > 3, process)
  finally:
    process.kill()
    process.communicate()
  before = _check_episodes(folder)
  process = _start(folder, "collect-eval", *STORE)
  try:
    _wait_for(lambda: _num_stored(folder) > before, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_SECONDS)
  finally:
    process.kill()
  assert process.returncode == 0
  assert _check_episodes(folder) > before


def test_sigkill_leaves_whole_files(folder):
  process = _start(folder, "collect-eval", *RECORDS)
  try:
    _wait_for(lambda: len(_files(folder)) > 2, process)
  finally:
    process.kill()
    process.communicate()
  for path in _files(folder):
    assert records.inspect_records(str(path)).num_records == 3


def test_sigterm_ends_the_wait_for_a_first_export(folder):
  process = _start(
    folder, "collect-eval", *STORE,
    "collect_eval_loop.policy_class = @RegressionPolicy",
    "RegressionPolicy.predictor = @ExportedSavedModelPredictor()",
    "ExportedSavedModelPredictor.export_dir = 'exports'",
  )  # fmt: skip
  try:
    _wait_for(lambda: (folder / "data" / "store").exists(), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_SECONDS)
  finally:
    process.kill()
  assert process.returncode == 0, err
  # The store is there while the sink is made, just before the loop begins.
  assert (
    "collected 0 episodes (0 steps) in 0 rounds" in out
    or out == "Stopped by a signal before the first round.\n"
  )


@pytest.mark.parametrize("command", ["collect-eval", "collect"])
def test_sigterm_ends_the_wait_of_a_sink_that_is_made(
  command, folder, run_main, monkeypatch
):
  monkeypatch.chdir(folder)
  status, out, err = run_main(
    command, "--gin_configs", "actor.gin", "--gin_bindings",
    "collect_eval_loop.sink = @connect_until_sigterm()",
    "collect_episodes.sink = @connect_until_sigterm()",
    "collect_episodes.env = @DriftEnv", "collect_episodes.policy = @ExpertPolicy()",
  )  # fmt: skip
  if command == "collect-eval":
    assert (status, out) == (0, "Stopped by a signal before the first round.\n"), err
  else:
    assert status == 143, err
    assert err.endswith("Stopped by a signal before all episodes were collected.\n")
  assert not (folder / "data").exists()


def test_sigterm_drops_the_file_that_collect_writes(folder):
  (folder / "actor.gin").write_text(
    "import drift_project\ncollect_episodes.env = @DriftEnv\n"
    "collect_episodes.policy = @ExpertPolicy()\ncollect_episodes.spec = @episode_spec\n"
    "collect_episodes.num_episodes = 1000000000\n"
    "collect_episodes.episodes_per_file = 500000000\n"
    "collect_episodes.output_path = 'data/drift.tfrecord'\n"
  )
  process = _start(folder, "collect", "collect_episodes.seed = 0")
  try:
    _wait_for(lambda: list((folder / "data").glob(".*")), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_SECONDS)
  finally:
    process.kill()
  assert process.returncode == 143, err
  assert "Stopped by a signal before all episodes were collected." in err
  assert not list((folder / "data").iterdir())


def test_one_round_into_a_store(folder, run_main, monkeypatch):
  monkeypatch.chdir(folder)
  one_round = (
    "collect_eval_loop.continuous = False",
    "collect_eval_loop.num_collect = 4",
    "collect_eval_loop.eval_env = @DriftEnv",
    "collect_eval_loop.num_eval = 2",
  )
  status, out, err = run_main(
    "collect-eval", "--gin_configs", "actor.gin", "--gin_bindings", *STORE, *one_round
  )
  assert status == 0, err
  assert out == (
    "Done at the policy of step 0: collected 4 episodes (20 steps) in 1 rounds; mean "
    "reward 0.0000 in the last round; mean reward 0.0000 in the last evaluation.\n"
  )
  assert _check_episodes(folder) == 4


def test_collect_into_a_store(folder, run_main, monkeypatch):
  monkeypatch.chdir(folder)
  status, out, err = run_main(
    "collect", "--gin_configs", "actor.gin", "--gin_bindings",
    "collect_episodes.env = @DriftEnv",
    "collect_episodes.policy = @ExpertPolicy()", "collect_episodes.num_episodes = 3",
    "collect_episodes.sink = @StoreSink()", *STORE[1:],
  )  # fmt: skip
  assert (status, out) == (
    0, "Collected 3 episodes (15 steps, mean reward 0.0000).\n"
  ), err  # fmt: skip
  assert _check_episodes(folder) == 3
