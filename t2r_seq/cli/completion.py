"""`t2r_seq completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
import shlex

SUMMARY = "print what a shell needs to complete commands and options"
DESCRIPTION = """Prints a script for a shell, which then completes commands and options.

  source <(t2r_seq completion bash)                        # in ~/.bashrc
  source <(t2r_seq completion zsh)                         # in ~/.zshrc
  t2r_seq completion fish > ~/.config/fish/completions/t2r_seq.fish"""
SHELLS = ("bash", "zsh", "fish")

_BASH = """_t2r_seq() {
  local word="${COMP_WORDS[COMP_CWORD]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words=%(commands)s
  elif [[ "$word" == -* ]]; then
    case "${COMP_WORDS[1]}" in
%(cases)s
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _t2r_seq t2r_seq
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's argument."""
  parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
  """Prints the script."""
  print(render(args.parsers, args.shell), end="")
  return 0


def render(commands: dict[str, argparse.ArgumentParser], shell: str) -> str:
  """Writes the script of a shell.

  Args:
    commands: the parsers of all commands, by name.
    shell: one of `SHELLS`.
  Returns:
    The script.
  """
  if shell == "fish":
    return "".join(_fish(commands))
  cases = "\n".join(
    f"      {name}) words={shlex.quote(' '.join(_options(parser)))} ;;"
    for name, parser in commands.items()
  )
  script = _BASH % {"commands": shlex.quote(" ".join(commands)), "cases": cases}
  if shell == "bash":
    return script
  # zsh runs what bash completes with.
  return f"autoload -Uz compinit bashcompinit\ncompinit\nbashcompinit\n{script}"


def _options(parser: argparse.ArgumentParser) -> list[str]:
  found = [option for action in parser._actions for option in action.option_strings]
  return sorted(option for option in found if option.startswith("--"))


def _fish(commands: dict[str, argparse.ArgumentParser]) -> list[str]:
  lines = []
  for name, parser in commands.items():
    said = shlex.quote(parser.description.split("\n")[0] if parser.description else "")
    lines.append(f"complete -c t2r_seq -n __fish_use_subcommand -a {name} -d {said}\n")
    for option in _options(parser):
      seen = f"'__fish_seen_subcommand_from {name}'"
      lines.append(f"complete -c t2r_seq -n {seen} -l {option[2:]}\n")
  return lines
