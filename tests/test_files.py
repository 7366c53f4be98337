"""Files that are replaced whole, and locks that die with their process."""

from __future__ import annotations

import os
import pathlib
import runpy
import socket
import stat
import subprocess
import sys
import threading

import pytest

from t2r_seq import files


def _refusal(holder):
  return RuntimeError(f"held by {holder}")


def test_file_is_replaced_atomically_without_leftovers(tmp_path):
  path = tmp_path / "state.json"
  for data in (b"one", b"two, which is longer", b""):
    files.replace_file(str(path), data)
    assert path.read_bytes() == data
  assert os.listdir(tmp_path) == ["state.json"]


def test_failed_replacement_keeps_the_old_contents(tmp_path, monkeypatch):
  path = tmp_path / "state.json"
  path.write_bytes(b"old")

  def full(descriptor, data):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "write", full)
  with pytest.raises(OSError, match="No space left"):
    files.replace_file(str(path), b"new")
  assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["state.json"]


def test_link_that_lies_in_wait_is_not_followed(tmp_path):
  target = tmp_path / "target"
  (tmp_path / "lock").symlink_to(target)
  want = r"expected a file to write to, got a link, which is not followed: '.*lock'"
  with pytest.raises(OSError, match=want):
    files.FileLock(str(tmp_path / "lock"), _refusal)
  (tmp_path / "state").symlink_to(target)
  files.replace_file(str(tmp_path / "state"), b"mine")
  assert not target.exists() and not (tmp_path / "state").is_symlink()


def _node(kind):
  """Makes a device like /dev/null, or a block device that nothing opens."""

  def make(path):
    try:
      os.mknod(
        path, kind | 0o600, os.makedev(*((1, 3) if kind == stat.S_IFCHR else (7, 99)))
      )
    except PermissionError:
      pytest.skip("devices are made by root alone")

  return make


def _bind(path):
  socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))


NODES = {
  "device": (_node(stat.S_IFCHR), None),
  "FIFO": (os.mkfifo, None),
  "folder": (os.mkdir, "expected a file, got a folder. Name another file."),
  "socket": (_bind, "expected a file, got a socket. Name another file."),
  "block device": (
    _node(stat.S_IFBLK),
    "expected a file, got a device. Name another file.",
  ),
}


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("name", NODES)
def test_output_never_replaces_what_is_no_file(name, is_link, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  make, want = NODES[name]
  make("node")
  before, path = os.stat("node"), "node"
  if is_link:
    os.symlink("node", "link")
    path = "link"
  read = []
  if name == "FIFO":
    reader = threading.Thread(
      target=lambda: read.append(pathlib.Path("node").read_bytes()), daemon=True
    )
    reader.start()
  if want is None:
    files.check_output("view", path, "a page", b"<html>")
    files.write_output(path, b"report")
  else:
    for write in (files.check_output, files.write_output):
      with pytest.raises(FileExistsError, match=f"{path}: {want}"):
        write("view", path) if write is files.check_output else write(path, b"report")
  if name == "FIFO":
    reader.join(10)
    assert read == [b"report"]
  if name != "folder":
    with pytest.raises(
      FileExistsError, match="expected a regular file to replace, got"
    ):
      files.replace_file("node", b"library's own")
  after = os.lstat("node")
  assert (after.st_mode, after.st_rdev, after.st_ino) == (
    before.st_mode, before.st_rdev, before.st_ino,
  )  # fmt: skip
  assert sorted(os.listdir()) == (["link", "node"] if is_link else ["node"])


@pytest.mark.parametrize("is_there", [True, False])
def test_output_goes_through_a_link_to_a_file(is_there, tmp_path):
  target, link = tmp_path / "disk" / "target", tmp_path / "link"
  target.parent.mkdir()
  if is_there:
    target.write_bytes(b"old")
  link.symlink_to(target)
  with pytest.raises(ZeroDivisionError), files.writing_output(link):
    raise ZeroDivisionError
  assert target.exists() == is_there
  files.write_output(link, b"new")
  assert link.is_symlink() and target.read_bytes() == b"new"
  assert os.listdir(target.parent) == ["target"]


# Prints before and after; the shell has opened the file.
_PRINTS = """
from t2r_seq import files
print("before", flush=True)
files.check_output("stats", "/dev/stdout", "statistics", b"{")
files.write_output("/dev/stdout", b"report\\n")
print("after")
"""


def test_output_to_stdout_keeps_the_order(tmp_path):
  path = tmp_path / "log"
  with open(path, "wb") as log:
    subprocess.run([sys.executable, "-c", _PRINTS], stdout=log, check=True)
  assert path.read_text() == "before\nreport\nafter\n"


def test_no_name_of_a_new_file_can_be_guessed(tmp_path):
  path = tmp_path / "a"
  names = {files.new_file(path) for _ in range(10)}
  assert len(names) == 10 and sorted(names) == files.left_behind(str(path))


def test_file_takes_its_place_when_its_block_ends_well(tmp_path):
  path = tmp_path / "a"
  path.write_bytes(b"old")
  with pytest.raises(ZeroDivisionError), files.replacing(path) as temporary:
    open(temporary, "wb").close()
    raise ZeroDivisionError
  assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]
  with files.replacing(path) as temporary, open(temporary, "wb") as file:
    assert os.path.dirname(temporary) == str(tmp_path)
    file.write(b"new")
  assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a"]


def test_folder_appears_whole_or_not_at_all(tmp_path):
  path = tmp_path / "x" / "y" / "folder"
  with pytest.raises(ZeroDivisionError), files.new_folder(path) as temporary:
    open(os.path.join(temporary, "a"), "wb").close()
    raise ZeroDivisionError
  assert os.listdir(path.parent) == []
  with files.new_folder(path) as temporary:
    open(os.path.join(temporary, "a"), "wb").close()
    assert not path.exists()
  assert os.listdir(path.parent) == ["folder"] and os.listdir(path) == ["a"]


def test_folder_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
  synced, fsync, replace = [], os.fsync, os.replace

  def note_sync(descriptor):
    fsync(descriptor)
    synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

  def note_replace(source, target):
    replace(source, target)
    synced.append(f"{source} becomes {target}")

  path = tmp_path / "new" / "folder"
  with files.new_folder(path) as made:
    os.mkdir(os.path.join(made, "b"))
    open(os.path.join(made, "b", "a"), "wb").close()
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
  parts = [made, f"{made}/b/a", f"{made}/b", f"{made} becomes {path}", str(path.parent)]
  assert synced == parts


def test_left_behind_lists_files_of_killed_replacements(tmp_path):
  (tmp_path / f".state.json.{'0' * 32}.tmp").touch()
  for other in (".state.json.tmp", f".other.json.{'0' * 32}.tmp", "state.json"):
    (tmp_path / other).touch()
  found = files.left_behind(str(tmp_path / "state.json"))
  assert [os.path.basename(path) for path in found] == [f".state.json.{'0' * 32}.tmp"]


def test_one_owner_at_a_time(tmp_path):
  path = str(tmp_path / "lock")
  assert not files.is_locked(path)
  lock = files.FileLock(path, _refusal)
  assert files.is_locked(path)
  with pytest.raises(RuntimeError, match=rf"held by process {os.getpid()} on "):
    files.FileLock(path, _refusal)
  lock.release()
  lock.release()
  assert not files.is_locked(path)
  files.FileLock(path, _refusal).release()


def test_system_without_file_locks_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "fcntl", None)
  with pytest.raises(ImportError, match=r"expected Linux or macOS, got .* use WSL"):
    runpy.run_path(files.__file__)


# Takes the lock, forks a process that lives on and says who it is, and dies.
_DIES = """
import os, signal, sys, time
from t2r_seq import files
lock = files.FileLock(sys.argv[1], RuntimeError)
reader, writer = os.pipe()
child = os.fork()
if not child:
  os.close(1)
  os.write(writer, b"1")
  time.sleep(600)
os.read(reader, 1)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lock_is_released_when_its_process_exits_before_a_fork(tmp_path):
  path = str(tmp_path / "lock")
  run = subprocess.run(
    [sys.executable, "-c", _DIES, path], stdout=subprocess.PIPE, text=True, check=False
  )
  child = int(run.stdout)
  try:
    os.kill(child, 0)
    files.FileLock(path, _refusal).release()
  finally:
    os.kill(child, 9)


def test_lock_on_a_removed_file_excludes_no_process(tmp_path):
  path = str(tmp_path / "lock")
  first = files.FileLock(path, _refusal)
  os.remove(path)
  second = files.FileLock(path, _refusal)
  assert files.is_locked(path)
  first.release()
  assert files.is_locked(path)
  second.release()


def test_replacing_all_files_of_a_large_folder_lists_it_rarely(tmp_path, monkeypatch):
  calls, listdir = [], os.listdir
  monkeypatch.setattr(os, "listdir", lambda at: calls.append(at) or listdir(at))
  abandoned = files.new_file(str(tmp_path / "399"))
  for _ in range(2):
    for number in range(400):
      files.replace_file(tmp_path / str(number), b"1")
  assert 64 <= len(calls) < 350
  assert not os.path.exists(abandoned)


def test_replacing_removes_files_of_killed_processes(tmp_path):
  path = tmp_path / "state.json"
  abandoned = files.new_file(str(path))
  with files.replacing(str(path)) as held:
    files.replace_file(str(path), b"new")
    assert files.left_behind(str(path)) == [held]
  assert not os.path.exists(abandoned)
  assert files.left_behind(str(path)) == []
