"""What is shown of an error, and which errors are shown with their traceback."""

from __future__ import annotations

import importlib
import os
import stat

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  convert,
  errors,
  imports,
  records,
  specs,
  statistics,
  store,
  training,
)
from t2r_seq.actors.rollouts import generate_episodes
from t2r_seq.cli import console, main


@gin.configurable(module="test_failures")
def needs_a_value(value=gin.REQUIRED):
  return value


@gin.configurable(module="test_failures")
def fails(error=gin.REQUIRED):
  raise error


def _catch(function, *args):
  try:
    function(*args)
  except Exception as error:
    return error
  raise AssertionError("expected an error")


def _raise(error):
  raise error


@pytest.mark.parametrize(
  ("error", "want"),
  [
    (_catch(_raise, errors.SpecError("a: b")), True),
    (_catch(_raise, errors.RecordError("a: b")), True),
    (_catch(_raise, FileNotFoundError("no file")), True),
    (_catch(_raise, imports.missing_extra("gymnasium", "envs")), True),
    (_catch(_raise, tf.errors.NotFoundError(None, None, "no file")), True),
    (_catch(tf.io.gfile.exists, "s3://a/b"), True),
    (_catch(needs_a_value), True),
    (_catch(gin.parse_config, "nothing.x = 1"), True),
    (_catch(gin.parse_config, "nothing x 1"), True),
    (_catch(importlib.import_module, "no_such_module"), True),
    (_catch(generate_episodes, None, None, 0), True),
    (_catch(_raise, ValueError("of a user's model")), False),
    (_catch(fails, ValueError("of a user's model")), False),
    (_catch(_raise, RuntimeError("of a user's model")), False),
    (_catch(tf.zeros([2]).__matmul__, tf.zeros([3])), False),
  ],
  ids=[
    "spec",
    "record",
    "file",
    "extra",
    "tensorflow's file",
    "remote file",
    "gin binding",
    "gin name",
    "gin syntax",
    "module",
    "library",
    "user's",
    "user's through gin",
    "user's runtime",
    "tensorflow",
  ],
)
def test_is_expected(error, want):
  assert console.is_expected(error) is want


@pytest.mark.parametrize(
  ("error", "want"),
  [
    (ValueError("a\n  b"), "a b"),
    (errors.SpecError("2 mismatches:\n  a\n  b"), "2 mismatches:\n  a\n  b"),
    (_catch(fails, errors.SpecError("a: b")), "a: b"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (ValueError("a \x1b[2Jname"), r"a \x1b[2Jname"),
    (
      _catch(gin.parse_config, "qqzzqq.x = 1"),
      "No configurable matching 'qqzzqq'. In bindings string line 1 qqzzqq.x = 1 Is "
      "its module imported? A gin file does so: import my_project.models",
    ),
    (
      _catch(gin.parse_config, "x = @run_envs()"),
      "No configurable matching reference '@run_envs()'. In bindings "
      "string line 1 x = @run_envs() ^ Did you mean 'run_env'? "
      "Is its module imported? A gin file does so: import my_project.models",
    ),
    (
      ValueError("No bindings specified for 'a/b/gin.macro' in config string: x\ny"),
      "the gin macro %a/b is used and not defined.",
    ),
    (
      _catch(tf.io.gfile.exists, "s3://a/b"),
      "File system scheme 's3' not implemented (file: 's3://a/b'). TensorFlow reads "
      "gs:// with credentials, and other remote files with tensorflow-io; or copy them "
      "here.",
    ),
  ],
  ids=[
    "one line",
    "mismatches",
    "through gin",
    "no message",
    "escapes of a terminal",
    "gin of no module",
    "gin, near to another",
    "gin macro",
    "remote files",
  ],
)
def test_message(error, want):
  assert console.message(error) == want


SHOWN = {
  "inspect": ("inspect", "q*.tfrecord"),
  "inspect, kinds": ("inspect", "*.tfrecord"),
  "doctor": ("doctor", "q*.tfrecord"),
  "index": ("index", "q*.tfrecord"),
  "stats": ("stats", "q*.tfrecord"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_names_of_others_command_no_terminal(name, run_main, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for file, dtype in (("q\x1b[1m.tfrecord", tf.float32), ("r.tfrecord", tf.int64)):
    spec = {"x": specs.ExtendedTensorSpec((), dtype, "x\x1b[2J", is_sequence=True)}
    records.write_records(file, spec, [{"x": np.ones(2, dtype.as_numpy_dtype)}] * 2)
  _, out, err = run_main(*SHOWN[name])
  assert "\x1b" not in out + err
  assert r"x\x1b[2J" in out


SPEC = {"x": specs.ExtendedTensorSpec((), tf.float32, "x", is_sequence=True)}
REMOTE = {
  "convert": lambda: convert.convert("a.tfrecord", "gs://b/out", SPEC),
  "statistics": lambda: statistics.compute_statistics("a.tfrecord", "gs://b/s.json"),
  "store": lambda: store.EpisodeStore.create("gs://b/s", SPEC),
  "records": lambda: records.RecordWriter("gs://b/r.tfrecord", SPEC),
  "training": lambda: training.train_eval_model(
    None, max_train_steps=1, model_dir="gs://b/run"
  ),
}


@pytest.mark.parametrize("name", REMOTE)
def test_commands_reject_urls_as_local_paths(name, tmp_path, monkeypatch):
  """It would be there, whole, and in no bucket."""
  monkeypatch.chdir(tmp_path)
  records.write_records("a.tfrecord", SPEC, [{"x": np.ones(2, np.float32)}])
  with pytest.raises(errors.SpecError, match=r"gs://b/.*expected a local path, "):
    REMOTE[name]()
  assert [path.name for path in tmp_path.iterdir()] == ["a.tfrecord"]


# What a report is made of, or something else that is there.
OUTPUTS = {
  "view": ("view", "a.tfrecord", "--output", "a.tfrecord"),
  "view of a store": ("view", "s", "--output", "s/store.json"),
  "a contact sheet": ("view", "s", "--output", "p.html", "--png", "a.tfrecord"),
  "stats": ("stats", "s", "--output", "s/store.json"),
  "a page of another tool": ("view", "s", "--output", "other.html"),
  "inspect": ("inspect", "a.tfrecord", "--output", "model.py"),
  "specs written by hand": ("inspect", "a.tfrecord", "--output", "specs.py"),
  "other JSON": ("inspect", "a.tfrecord", "--output", "statistics.json"),
  "default statistics": ("stats", "a.tfrecord"),
  "default statistics of a store": ("stats", "s"),
  "index": ("index", "a.tfrecord"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_report_replaces_reports_alone(name, run_main, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  episode = {"x": np.ones(2, np.float32)}
  records.write_records("a.tfrecord", SPEC, [episode])
  with store.EpisodeStore.create("s", SPEC) as writer:
    writer.append_episode(episode)
  (tmp_path / "model.py").write_text("my_model = 1")
  (tmp_path / "specs.py").write_text("from t2r_seq.specs import TensorSpecStruct\n")
  (tmp_path / "other.html").write_text("<!doctype html>\n<title>mine</title>")
  for file in ("statistics.json", "s/statistics.json"):
    (tmp_path / file).write_text('{"games": 3, "dtype": "x"}')
  (tmp_path / "a.tfrecord.t2ri").write_text("my notes")
  before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
  status, _, err = run_main(*OUTPUTS[name])
  assert status == 1 and "expected no file there, or" in err
  assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
  ("command", "end"), [("view", "html"), ("stats", "json"), ("inspect", "py")]
)
def test_report_replaces_its_like(command, end, run_main, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  records.write_records("a.tfrecord", SPEC, [{"x": np.ones(2, np.float32)}])
  for _ in range(2):
    assert run_main(command, "a.tfrecord", "--output", f"report.{end}")[0] == 0


STREAMS = {
  "view": ("view", "s", "--output"),
  "stats": ("stats", "s", "--output"),
  "inspect": ("inspect", "s", "--format", "json", "--output"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_report_goes_to_a_device_or_through_a_link(
  name, run_main, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with store.EpisodeStore.create("s", SPEC) as writer:
    writer.append_episode({"x": np.ones(2, np.float32)})
  try:
    os.mknod("null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
  except PermissionError:
    pytest.skip("devices are made by root alone")
  os.symlink("report.json", "link")
  for path in ("null", "link", "link"):
    status, _, err = run_main(*STREAMS[name], path)
    assert status == 0, err
  assert stat.S_ISCHR(os.lstat("null").st_mode)
  assert os.path.islink("link") and os.path.getsize("report.json")
  assert run_main(*STREAMS[name], "s")[0] == 1


def test_help_fits_a_terminal(capsys):
  for command in ("collect", "doctor", "convert", "train"):
    with pytest.raises(SystemExit):
      main([command, "--help"])
  assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
