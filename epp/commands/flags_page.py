"""docs/flags.md, written from where the flags are declared; a test keeps both equal."""

from .go_flags import ELSEWHERE, Foreign
from .serve import Flag, serve_flags


def page() -> str:
    """The text of docs/flags.md."""
    return "\n".join(
        [
            "# Flags of `epp serve`",
            "",
            "Generated from `epp/config/serve.py` and `epp/commands/go_flags.py`;"
            " a test keeps them equal.",
            "",
            "A switch is `--name`, `--no-name`, or `--name=true`; a duration is `30s`, `50ms`,"
            " `1m30s` or a number of seconds; a size is `10MiB` or a number of bytes; names are"
            " separated by commas. One dash does for two. An empty value is no value.",
            "",
            "| flag | takes | default | meaning |",
            "|---|---|---|---|",
            *(_ours(flag) for flag in serve_flags().values()),
            "",
            "## What the Go picker has besides",
            "",
            "Its other flags stand above and mean the same. These take the place of ours, or are"
            " refused with a sentence at start. Its own defaults for authentication of metrics,"
            " profiles and traces are true; here they are off, and asking for them is refused.",
            "",
            "| flag | here |",
            "|---|---|",
            *(_theirs(flag) for flag in ELSEWHERE.values()),
            "",
        ]
    )


def _ours(flag: Flag) -> str:
    default = f"`{flag.default}`" if flag.default else "-"
    env = f" Without it: `{flag.env}` of the environment." if flag.env else ""
    takes = "switch" if flag.takes == "bool" else flag.takes.replace("|", ", ")
    return f"| `--{flag.name}` | {takes} | {default} | {flag.help}{env} |"


def _theirs(flag: Foreign) -> str:
    dashes = "-" if len(flag.name) == 1 else "--"
    refused = flag.refused("true")
    what = "true is refused: " if refused and flag.switch else "refused: " if refused else ""
    return f"| `{dashes}{flag.name}` | {what}{flag.says} |"
