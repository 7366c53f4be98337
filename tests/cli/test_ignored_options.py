"""Options without an effect are an error that names all of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from t2r_seq import records, specs, store

SPEC = {"x": specs.ExtendedTensorSpec((1,), "float32", "x", is_sequence=True)}
EPISODE = {"x": np.zeros((3, 1), np.float32)}
TRAIN = ["train", "--model_dir", "run", "--policy"]
# name: (command line; options that the error names; the end of the error)
IGNORED = {
  "train, gin": (
    [
      "train",
      "--gin_configs",
      "a.gin",
      "--steps",
      "5",
      "--size",
      "base",
      "--from",
      "b",
    ],
    "--size, --steps, --from",
    "without --policy NAME; use --gin_bindings",
  ),
  "train, online": (
    [*TRAIN, "sac", "--env", "A", "--dataset", "s", "--task", "t", "--split", "train"],
    "--dataset, --task, --split",
    "with --policy sac, which learns in an environment",
  ),
  "train, no data set": (
    [*TRAIN, "mlp", "--print_config", "--env", "A", "--drop", "x", "--action", "a"],
    "--env, --drop",
    "without --dataset PATH",
  ),
  "train, no environment": (
    [*TRAIN, "mlp", "--dataset", "s", "--observe", "a=b", "--env_options", "{}"],
    "--observe, --env_options",
    "without --env NAME",
  ),
  "train, no text": (
    [*TRAIN, "mlp", "--dataset", "s", "--env", "A", "--task", "t"],
    "--task",
    "with --policy mlp, which takes no text",
  ),
  "dispatcher": (
    ["data-service", "dispatcher", "--host", "a", "--heartbeat", "3"],
    "--host, --heartbeat",
    "for a dispatcher",
  ),
  "worker": (
    ["data-service", "worker", "--dispatcher", "a:1", "--work_dir", "a"],
    "--work_dir",
    "for a worker",
  ),
  "check of an index": (
    ["index", "a.tfrecord", "--check", "--force", "--num_parallel", "3"],
    "--force, --num_parallel",
    "with --check, which only reads",
  ),
  "doctor, whole store": (
    ["doctor", "s", "--salvage", "out", "--split", "train", "--allow_nan"],
    "--split, --allow_nan",
    "with --salvage, which copies a whole store",
  ),
  "doctor, no copy": (
    ["doctor", "s", "--lenient"],
    "--lenient",
    "without --salvage OUT",
  ),
  "inspect, input of a training": (
    ["inspect", "--gin_configs", "a.gin", "--max_records", "1", "--drop", "x"],
    "--drop, --max_records",
    "with --gin_configs and --gin_bindings",
  ),
  "check of statistics": (
    ["stats", "s", "--check", "--images", "--policy", "mlp", "--elements"],
    "--policy, --images",
    "with --check, which computes nothing",
  ),
  "statistics of a policy": (
    ["stats", "s", "--policy", "mlp", "--transform", "a:b", "--num_workers", "1"],
    "--transform, --num_workers",
    "with --policy",
  ),
  "convert": (
    ["convert", "s", "out", "--seed", "1"],
    "--seed",
    "without --split NAME=SHARE",
  ),
  "predict": (
    ["predict", "e", "--records", "a.tfrecord", "--seed", "1"],
    "--seed",
    "without --random",
  ),
  "view": (
    ["view", "s", "--no_model", "--gin_bindings", "a.b = 1"],
    "--gin_configs, --gin_bindings",
    "with --no_model",
  ),
}
# Options of the formats of others.
FOREIGN = {
  "inspect, store": (["inspect", "s", "--layout", "{}"], "'layout'"),
  "inspect, records": (
    ["inspect", "a.tfrecord", "--frame_tolerance", "0"],
    "tolerance",
  ),
  "stats, records": (["stats", "a.tfrecord", "--layout", "{}"], "'layout'"),
  "doctor, records": (["doctor", "a.tfrecord", "--layout", "{}"], "'layout'"),
  "doctor, store": (["doctor", "s", "--frames_by", "index"], "'frames_by'"),
  "convert, store": (["convert", "s", "out", "--frame_tolerance", "0"], "tolerance"),
  "convert, records": (["convert", "s", "a.tfrecord", "--video_gop", "0"], "video_gop"),
}


@pytest.fixture(name="files", autouse=True)
def fixture_files(tmp_path, monkeypatch):
  """A store and a TFRecord file in the current folder."""
  monkeypatch.chdir(tmp_path)
  with store.EpisodeStore.create("s", SPEC) as writer:
    writer.append_episode(EPISODE)
  records.write_records("a.tfrecord", SPEC, [EPISODE])


@pytest.mark.parametrize("name", IGNORED)
def test_options_without_effect_are_named(name, run_main):
  argv, options, reason = IGNORED[name]
  status, _, err = run_main(*argv)
  assert (status, err.count("\n")) == (1, 1)
  assert err.startswith(f"t2r_seq {argv[0]}: {options}: no effect {reason}"), err


@pytest.mark.parametrize("name", FOREIGN)
def test_options_of_other_formats_are_named(name, run_main):
  argv, option = FOREIGN[name]
  status, _, err = run_main(*argv)
  assert status == 1 and option in err and "expected" in err, err


def test_environment_options_reach_an_online_policy(run_main):
  pytest.importorskip("gymnasium", reason="the extra `envs`")
  options = {"g": 1.0}
  argv = [*TRAIN, "sac", "--size", "tiny", "--env", "Pendulum-v1", "--print_config"]
  status, out, err = run_main(*argv, "--env_options", json.dumps(options))
  assert status == 0, err
  assert f"\nmake_environment.options = {options}" in out
  status, _, err = run_main(*argv, "--env_options", "[1]")
  assert status == 1 and "--env_options: expected an object, got [1]." in err
