"""The command line's entry: finds the command, runs it, reports errors."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from t2r_seq import __version__, errors, process
from t2r_seq.cli import console

# The module of each command, or 'module:attribute' if a module has several commands.
# t2r_seq_lite has `serve` only.
_COMMANDS = {
  "train": "train",
  "evaluate": "evaluate",
  "collect": "gin_commands:COLLECT",
  "collect-eval": "gin_commands:COLLECT_EVAL",
  "convert": "convert",
  "inspect": "inspect",
  "doctor": "doctor",
  "index": "index",
  "stats": "stats",
  "data-service": "data_service",
  "replay-server": "gin_commands:REPLAY_SERVER",
  "predict": "policies:PREDICT",
  "export": "policies:EXPORT",
  "import": "policies:IMPORT",
  "serve": "serve",
  "verify": "policies:VERIFY",
  "view": "view",
  "gin": "gin_commands:GIN",
  "info": "info",
}


def _load_commands() -> dict[str, Any]:
  """Imports the commands that are installed."""
  commands = {}
  for name, place in _COMMANDS.items():
    module_name, _, attribute = f"t2r_seq.cli.{place}".partition(":")
    if importlib.util.find_spec(module_name) is not None:
      module = importlib.import_module(module_name)
      commands[name] = getattr(module, attribute) if attribute else module
  return commands


class _Parser(argparse.ArgumentParser):
  """Suggests the nearest name for an unknown command or option."""

  def error(self, message: str) -> NoReturn:
    """Ends the process with the message and the nearest name."""
    if match := re.search(r"argument COMMAND: invalid choice: '([^']*)'", message):
      message = f"there is no command '{match[1]}'."
      if match[1] in _COMMANDS:
        message += " t2r_seq_lite has `serve` only: install t2r_seq instead"
      else:
        message += errors.nearest(match[1], _COMMANDS)
    if match := re.match(r"unrecognized arguments: (--[\w-]+)", message):
      option = "--" + match[1][2:].replace("-", "_")
      message += errors.nearest(option, self._option_string_actions)
    super().error(message)


def create_parser() -> argparse.ArgumentParser:
  """Creates the parser of all commands."""
  parser = _Parser(
    prog="t2r_seq",
    description="Sequence and frame-stacking policies from one spec.",
    epilog="`t2r_seq COMMAND --help` describes a command.",
  )
  parser.add_argument("--version", action="version", version=__version__)
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
  parser.set_defaults(parsers=commands.choices)
  for name, module in _load_commands().items():
    command = commands.add_parser(
      name,
      help=module.SUMMARY,
      description=module.DESCRIPTION,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(command)
    command.add_argument(
      "--debug", action="store_true", help="show the traceback of an error"
    )
    command.set_defaults(run=module.run)
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command.

  Args:
    argv: the arguments; None: the process's.
  Returns:
    The exit status: 0; 1 after an error, or for findings; 130 after an interrupt; 141
    if nobody reads the output, as after `| head`; or 143 if SIGTERM ended `collect`.
  Raises:
    SystemExit: `--help`, or with status 2 for invalid arguments.
  """
  if argv is not None:
    return _main(argv)
  process.begin_process()
  try:
    return _main(None)
  finally:
    process.end_process()


def _main(argv: Sequence[str] | None) -> int:
  parser = create_parser()
  if "_ARGCOMPLETE" in os.environ:  # A shell requests completions.
    import argcomplete

    argcomplete.autocomplete(parser)
  args, unknown = parser.parse_known_args(argv)
  if unknown:
    args.parsers[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
  if "gin" in sys.modules:  # An earlier command of this process has locked its config.
    sys.modules["gin"].clear_config()
  # TensorFlow's start-up notes would bury the command's own output.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  try:
    status = args.run(args)
    print(end="", flush=True)  # Finds a closed output also if nothing was printed.
    return status
  except KeyboardInterrupt:
    print(f"t2r_seq {args.command}: interrupted", file=sys.stderr)
    return 130
  except Exception as error:
    if isinstance(error, BrokenPipeError) and not _is_read():
      # Discards the rest of the output, so that the interpreter can end.
      with contextlib.suppress(OSError):  # stdout may have no file descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 141
    if args.debug or not console.is_expected(error):
      raise
    # Many errors begin with the operation, which is often the command.
    text = console.message(error).removeprefix(f"{args.command}: ")
    print(f"t2r_seq {args.command}: {text}", file=sys.stderr)
    return 1


def _is_read() -> bool:
  """Returns whether stdout has a reader: the broken pipe may be another one."""
  try:
    print(flush=True)
  except BrokenPipeError:
    return False
  return True


if __name__ == "__main__":
  sys.exit(main())
