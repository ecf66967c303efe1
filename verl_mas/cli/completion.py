"""Print a script that completes commands, subcommands and options in bash, zsh or fish.

    verl-mas completion bash > ~/.local/share/bash-completion/completions/verl-mas
    verl-mas completion zsh > ~/.zsh/completions/_verl-mas
    verl-mas completion fish > ~/.config/fish/completions/verl-mas.fish

For zsh the folder has to be in fpath before compinit. A new shell reads the file; after an upgrade, write it again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from verl_mas.cli import commands
from verl_mas.cli._parser import Parser
from verl_mas.cli._parsers import parsers

# In all three, COMMAND is what has been typed so far: '', 'view', 'data rows'. Options are offered after a dash alone;
# where nothing is offered, the shell completes file names.
BASH = """\
# bash completion of verl-mas, written by `verl-mas completion bash`
_verl_mas() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words= hidden='-*'
    ((COMP_CWORD > 1)) || command=
    case $command in
        @NESTED@) ((COMP_CWORD == 2)) || command="$command ${COMP_WORDS[2]}" ;;
    esac
    case $command in
@CASES@
    esac
    [[ $word != -* ]] || hidden=
    COMPREPLY=($(compgen -W "$words" -X "$hidden" -- "$word"))
}
complete -o default -F _verl_mas verl-mas
"""
ZSH = """\
#compdef verl-mas
# zsh completion of verl-mas, written by `verl-mas completion zsh`
_verl_mas() {
    local command=$words[2]
    local -a found
    (( CURRENT > 2 )) || command=
    case $command in
        (@NESTED@) (( CURRENT == 3 )) || command="$command $words[3]" ;;
    esac
    case $command in
@CASES@
    esac
    [[ $PREFIX == -* ]] || found=(${found:#-*})
    if (( $#found )); then compadd -- $found; else _files; fi
}
if [[ $funcstack[1] == _verl-mas ]]; then _verl_mas; else compdef _verl_mas verl-mas; fi
"""
FISH = """\
# fish completion of verl-mas, written by `verl-mas completion fish`
function __verl_mas
    set -l given (commandline -opc)
    set -l command "$given[2]"
    set -l words
    switch $command
        case @NESTED@
            set command (string join ' ' $given[2..3])
    end
    switch $command
@CASES@
    end
    if string match -q -- '-*' (commandline -ct)
        string match -- '-*' $words
    else
        string match -v -- '-*' $words
    end
end
complete -c verl-mas -n '__verl_mas >/dev/null' -f -a '(__verl_mas)'
"""
# The script, what is between the names of commands that have subcommands, and one line of @CASES@.
SHELLS = {
    "bash": (BASH, "|", "        {command}) words='{words}' ;;"),
    "zsh": (ZSH, "|", "        ({command}) found=({words}) ;;"),
    "fish": (FISH, " ", "        case {command}\n            set words {words}"),
}


def parser() -> Parser:
    made = Parser("verl-mas completion", __doc__)
    made.add_argument("shell", metavar="SHELL", choices=list(SHELLS), help=", ".join(SHELLS))
    return made


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    sys.stdout.write(script(options.shell, offered()))
    return 0


def script(shell: str, words: Mapping[str, Sequence[str]]) -> str:
    text, between, line = SHELLS[shell]
    cases = [line.format(command=f"'{command}'", words=" ".join(found)) for command, found in words.items()]
    nested = dict.fromkeys(command.split()[0] for command in words if " " in command)
    return text.replace("@NESTED@", between.join(nested)).replace("@CASES@", "\n".join(cases))


def offered() -> dict[str, list[str]]:
    """What may follow '', 'view', 'data', 'data rows', ...: plain words, then options."""
    found = {"": [*commands(), "--help", "--version"]}
    for command, made in parsers():
        plain = [*made.subcommands()]
        options = ["--help"]
        for action in made.options():
            options += action.option_strings
            plain += [] if action.option_strings else map(str, action.choices or [])
        found[command] = [*plain, *options]
    return found
