"""A model's chat template, rendered as its engine renders it.

The template comes from a file that the operator mounted; its arguments come from clients. So it
runs in a sandbox that lets it change nothing and reach nothing. A template that reads the clock
gives another text each day, and the engine's clock is not ours: that is refused when it happens.
"""

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .content_format import loops_over_content
from .tokenised import UnrenderableError

_OPEN_END = "epp-the-answer-goes-on-here "
"""Put where a message is to be continued, and cut off with what follows it. Its last blank says
whether the template trims what it prints."""


_RAISED = (
    *(TemplateError, RuntimeError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, AssertionError, MemoryError),
)
"""What a template may do with values of other shapes than it expects."""


class _Answers(Extension):
    """`{% generation %}` marks what the model said, for training; here it only prints."""

    tags = {"generation"}  # noqa: RUF012 - jinja's interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. Rendering changes nothing, so several threads may."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special`: texts that it knows by name. Raises UnrenderableError for no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Answers, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _no_clock
        self._special = dict(special)
        self._source = source
        try:
            parsed = environment.parse(source)
            self._compiled = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise UnrenderableError(f"not a chat template: {error}") from None
        self.variables = frozenset(find_undeclared_variables(parsed))
        """Names that it reads from outside."""
        self.wants_parts = loops_over_content(parsed)
        """Whether content is handed over as a list of parts."""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt's text. Raises UnrenderableError for what the template refuses."""
        if continue_final_message:
            messages = self._open_ended(messages)
        given = {name: value for name, value in arguments.items() if name in self.variables}
        given.setdefault("documents", None)
        try:
            text = self._compiled.render(
                {
                    **self._special,
                    **given,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except UnrenderableError:
            raise
        except _RAISED as error:
            raise UnrenderableError(f"{type(error).__name__}: {error}") from None
        return _cut_open(text) if continue_final_message else text

    def _open_ended(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same messages, where the last one has no end."""
        *before, last = messages
        content = last.get("content")
        if not content or "content" not in self._source:
            raise UnrenderableError("the last message has nothing to continue")
        if isinstance(content, str):
            return [*before, {**last, "content": content + _OPEN_END}]
        *parts, end = content
        if "text" not in end:
            raise UnrenderableError("the last message does not end with text")
        return [*before, {**last, "content": [*parts, {**end, "text": end["text"] + _OPEN_END}]}]


def _cut_open(text: str) -> str:
    at = text.rfind(_OPEN_END.rstrip())
    if at < 0:
        raise UnrenderableError("the template leaves out the message that is to be continued")
    whole = text.startswith(_OPEN_END, at)
    return text[:at] if whole else text[:at].rstrip()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes what is special in HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(sentence: str) -> None:
    raise UnrenderableError(sentence)


def _no_clock(_: str) -> str:
    raise UnrenderableError("the template reads the clock")
