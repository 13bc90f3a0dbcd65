"""The generative APIs of a simulated engine: who reads a request, and who answers it. Pure."""

from collections.abc import Callable, Mapping

from epp.bodies.sharing import Api
from epp.sim import generate, messages, responses
from epp.sim.answers import Answer
from epp.sim.api import Ask, parse_chat, parse_completion
from epp.sim.openai import Chat, Completion
from epp.sim.settings import EngineSettings

Parse = Callable[[bytes, EngineSettings], Ask]

PARSERS: Mapping[Api, Parse] = {
    Api.COMPLETIONS: parse_completion,
    Api.CHAT: parse_chat,
    Api.RESPONSES: responses.parse,
    Api.MESSAGES: messages.parse,
    Api.GENERATE: generate.parse,
}
"""What reads the bodies posted to a path. Each raises ApiError."""

RENDERED = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
"""APIs whose requests it renders, too, at their path and `/render`."""

_ANSWERS: Mapping[Api, type[Answer]] = {
    Api.COMPLETIONS: Completion,
    Api.CHAT: Chat,
    Api.RESPONSES: responses.Response,
    Api.MESSAGES: messages.MessageAnswer,
    Api.GENERATE: generate.Generated,
}


def answer_to(ask: Ask, request_id: str, created: int) -> Answer:
    """An answer without any token yet. `created` is Unix time in seconds."""
    return _ANSWERS[ask.api].of(ask, request_id, created)
