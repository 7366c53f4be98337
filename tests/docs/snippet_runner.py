"""Runs the snippets of one Markdown file, in order, in the current folder.

    python snippet_runner.py README.md SCRATCH_FOLDER

Every ```python block is executed, all of a file in one namespace. A ```bash block is
executed where the line above it is the comment `<!-- run -->`. A failure names the
file and the line in it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import subprocess
import sys
import traceback
import types

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+) *(?P<language>\w*)[^`]*$")
RUN_MARK = "<!-- run -->"
BASH_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Snippet:
  """One block to execute.

  Attributes:
    language: 'python' or 'bash'.
    line: number of its first line of code in the file, from 1.
    code: the text between the fences.
  """

  language: str
  line: int
  code: str


def find_snippets(text: str) -> list[Snippet]:
  """Lists the blocks of a Markdown text that are to be executed."""
  snippets = []
  marked = False
  fence, first, body = None, 0, []
  for number, line in enumerate(text.splitlines(), start=1):
    if fence is not None:
      closes = line.strip().startswith(fence["ticks"]) and not line.strip(" `~")
      if not closes:
        body.append(line.removeprefix(fence["indent"]))
        continue
      language = fence["language"]
      if language == "python" or (language == "bash" and marked):
        snippets.append(Snippet(language, first, "\n".join(body) + "\n"))
      fence, marked, body = None, False, []
    elif match := FENCE.match(line):
      fence, first = match, number + 1
    elif line.strip():
      marked = line.strip() == RUN_MARK
  if fence is not None:
    raise ValueError(f"line {first - 1}: the block is never closed")
  return snippets


def run_python(snippet: Snippet, path: pathlib.Path, module: types.ModuleType) -> None:
  """Executes a snippet from `path`, a file whose lines are numbered as the page's."""
  source = "\n" * (snippet.line - 1) + snippet.code
  path.write_text(source, encoding="utf-8")
  module.__file__ = str(path)
  exec(compile(source, str(path), "exec"), module.__dict__)


def failing_line(error: BaseException, path: pathlib.Path, default: int) -> int:
  """Returns the line of `path` that raised, the innermost if there are several."""
  if isinstance(error, SyntaxError) and error.filename == str(path):
    return error.lineno or default
  frames = traceback.extract_tb(error.__traceback__)
  lines = [frame.lineno for frame in frames if frame.filename == str(path)]
  return (lines[-1] if lines else default) or default


def run_file(path: pathlib.Path, scratch: pathlib.Path) -> int:
  """Runs the snippets of a Markdown file up to the first that fails.

  Args:
    path: the Markdown file.
    scratch: a folder for the extracted Python, so that tracebacks, autograph and
      `inspect` find real source lines.

  Returns:
    The process's exit status.
  """
  # A module of its own, and registered: classes of a snippet can be looked up.
  module = types.ModuleType(f"snippets_of_{path.stem.lower().replace('-', '_')}")
  sys.modules[module.__name__] = module
  for snippet in find_snippets(path.read_text(encoding="utf-8")):
    if snippet.language == "bash":
      command = ["bash", "-euo", "pipefail", "-c", snippet.code]
      status = subprocess.run(
        command, stdin=subprocess.DEVNULL, timeout=BASH_SECONDS, check=False
      ).returncode
      if status:
        print(f"{path}:{snippet.line}: bash snippet ends with status {status}")
        return 1
      continue
    source = scratch / f"{path.stem}_line_{snippet.line}.py"
    try:
      run_python(snippet, source, module)
    except BaseException as error:  # a SystemExit of a snippet is a failure as well
      sys.stdout.flush()
      traceback.print_exc()
      line = failing_line(error, source, snippet.line)
      print(f"{path}:{line}: python snippet raises {type(error).__name__}: {error}")
      return 1
  return 0


if __name__ == "__main__":
  # As for `python -m`: what lies in the current folder can be imported.
  sys.path[0] = ""
  sys.exit(run_file(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
