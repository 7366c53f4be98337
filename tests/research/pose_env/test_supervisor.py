"""Processes that finish, die, die too often, and don't want to stop."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from research.pose_env import supervisor as supervisor_lib
from research.pose_env import tied_process

ROOT = pathlib.Path(__file__).resolve().parents[3]

FOREVER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"


def python(code):
  return [sys.executable, "-c", code]


@pytest.fixture(name="job")
def fixture_job(tmp_path):
  job = supervisor_lib.Supervisor(tmp_path, max_restarts=2, restart_seconds=0.01)
  with job.stopped_at_exit():
    yield job


def wait_until(condition, seconds=20):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def poll_until(job, condition):
  wait_until(lambda: condition(job.poll()))


def log_of(job, name):
  return job.log_path(name).read_text()


def test_process_that_exits_with_0_is_not_restarted(job):
  job.start("short", python("print('done')"))
  poll_until(job, lambda finished: finished == {"short"})
  assert job.poll() == {"short"}
  assert job.num_restarts("short") == 0
  assert log_of(job, "short") == "done\n"


def test_killed_process_is_restarted(job):
  job.start("server", python(FOREVER))
  job.start("other", python(FOREVER))
  poll_until(job, lambda _: "up" in log_of(job, "server"))
  first, other = job.pid("server"), job.pid("other")
  os.kill(first, signal.SIGKILL)
  poll_until(job, lambda _: job.pid("server") not in (first, None))
  poll_until(job, lambda _: log_of(job, "server").count("up") == 2)
  assert job.num_restarts("server") == 1
  assert (job.pid("other"), job.num_restarts("other")) == (other, 0)


def test_repeated_crashes_end_the_job_with_the_last_output(job):
  job.start("broken", python("print('a' * 9); raise SystemExit('no such spec')"))
  want = r"broken: expected at most 2 restarts, died once more \(status 1\)"
  with pytest.raises(supervisor_lib.JobError, match=want) as info:
    poll_until(job, lambda _: False)
  assert str(info.value).endswith("no such spec")
  assert log_of(job, "broken").count("aaaaaaaaa") == 3


def test_stop_reaches_the_named_ones(job):
  for name in ("actor", "server"):
    job.start(name, python(FOREVER))
  job.stop("actor")
  assert job.poll() == set()
  assert job.pid("server") is not None
  with pytest.raises(KeyError, match="actor"):
    job.pid("actor")


def test_stop_kills_what_does_not_listen(job):
  job.start("deaf", python(DEAF))
  poll_until(job, lambda _: "up" in log_of(job, "deaf"))
  pid = job.pid("deaf")
  job.stop(timeout=0.1)
  with pytest.raises(ProcessLookupError, match="No such process"):
    os.kill(pid, 0)


def test_failure_in_the_block_leaves_nothing_behind(tmp_path):
  job = supervisor_lib.Supervisor(tmp_path)
  with pytest.raises(ValueError, match="mine"), job.stopped_at_exit():
    job.start("server", python(FOREVER))
    pid = job.pid("server")
    raise ValueError("mine")
  with pytest.raises(ProcessLookupError, match="No such process"):
    os.kill(pid, 0)


SUPERVISOR = """
import pathlib, sys, time
from research.pose_env import supervisor
job = supervisor.Supervisor(pathlib.Path(sys.argv[1]))
job.start("server", [sys.executable, "-c", sys.argv[2]])
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends the processes")
def test_supervisor_that_is_killed_leaves_nothing_behind(tmp_path):
  told = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit('told'))"
  process = subprocess.Popen(
    [sys.executable, "-c", SUPERVISOR, str(tmp_path), f"{told}; {FOREVER}"],
    env={**os.environ, "PYTHONPATH": str(ROOT)},
  )
  log = tmp_path / "server.log"
  with process:
    wait_until(lambda: log.exists() and log.read_text() == "up\n")
    process.kill()
  wait_until(lambda: log.read_text() == "up\ntold\n")


def test_process_whose_parent_is_gone_does_not_start(tmp_path):
  made = tmp_path / "made"
  command = [sys.executable, tied_process.__file__, "1", "touch", str(made)]
  assert subprocess.run(command, check=False).returncode == 1
  assert not made.exists()


def test_processes_get_the_given_environment_and_folder(tmp_path):
  (tmp_path / "there").mkdir()
  job = supervisor_lib.Supervisor(
    tmp_path, environment={"WORD": "word"}, folder=tmp_path / "there"
  )
  with job.stopped_at_exit():
    code = "import os; print(os.environ['WORD'], os.getcwd())"
    job.start("env", python(code))
    poll_until(job, lambda finished: finished == {"env"})
  assert log_of(job, "env") == f"word {tmp_path / 'there'}\n"
