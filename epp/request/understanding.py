"""What a decision knows of a request before anybody is chosen: model, size and block keys.

Late or failing tokens give less, never an error: then load decides. A model that the gateway wants
called by another name is the exception. An engine would refuse the client's name, so where there
is no time to write the other one the request is refused here, to be tried again.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from epp.errors import Refusal, Saturated
from epp.framework import Request
from epp.framework.quick import quick

from .apis import catalog, passthrough, rewrite
from .apis.prompt import Parsed, TextPrompt
from .exchange import Arrival, ModelName
from .hints import Hints
from .objectives import LiveObjectives
from .offload import INLINE_BYTES, BusyError, Offload
from .settings import PickSettings
from .tokens import Tokenised, Tokens

MAX_UNSCORED_TOKENS = 4096
"""Prompt tokens charged for a body that nobody understood: a guess from its size, bounded."""

SMALL_BYTES = INLINE_BYTES // 2
"""Of smaller bodies nothing is computed elsewhere, for token ids take at most twice their bytes:
all that is waited for is an engine's answer, which has a limit of its own. They need no timer."""

log = structlog.get_logger(__name__)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    request: Request
    why: str
    """`ok`, or the stable word why a decision will know less than it might."""
    told: str
    """More exactly, for the decision's reasons."""
    body: bytes | None = None
    """The body with the model's other name, where it was rewritten."""
    model: ModelName | None = None
    """Both names, where the body was rewritten."""
    notes: tuple[str, ...] = ()
    """More reasons, in stable words."""


@dataclass(slots=True)
class _Reading:
    parsed: Parsed
    """With the model's name as the engine will read it."""
    asked: str
    body: bytes | None = None
    note: str = ""
    by: str = ""
    """See `Request.rewritten_by`."""


class Understanding:
    """Owned by the director. `failed` is told when a step raises."""

    def __init__(
        self,
        *,
        tokens: Tokens,
        offload: Offload,
        objectives: LiveObjectives,
        rules: catalog.Rules,
        settings: PickSettings,
        clock: Callable[[], float],
        ids: Callable[[], str],
        failed: Callable[[str], None],
    ) -> None:
        self._tokens = tokens
        self._offload = offload
        self._objectives = objectives
        self._rules = self._plan_rules = rules
        self._parsers: Collection[str] | None = None
        """Those of `_plan_rules`."""
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._failed = failed

    async def of(
        self,
        arrival: Arrival,
        hints: Hints,
        *,
        score: bool,
        started: float,
        parsers: Collection[str] | None = None,
    ) -> Understood:
        """The request with as much as could be known by the deadline. Raises Refusal.

        Without `score` nobody looks for tokens. `started`: when it arrived, by the clock.
        `parsers`: those of the plan, see `Rules`; None: it chose none.
        """
        rules = self._ruled(parsers)
        reading: _Reading | None = None
        found: Tokenised | None = None
        why = "ok"
        try:
            size = catalog.work_bytes(arrival, rules)
            if size <= SMALL_BYTES:
                reading = _read(arrival, hints.model, rules, self._objectives)
                found = await self._found(arrival, hints, reading, score=score, started=started)
            else:
                async with asyncio.timeout(self._within_s(hints.timeout_s)):
                    reading = await self._offload.run(
                        size, lambda: _read(arrival, hints.model, rules, self._objectives)
                    )
                    found = await self._found(arrival, hints, reading, score=score, started=started)
            if reading.parsed.prompt is None:
                why = "unscored"
        except Refusal:
            raise
        except (TimeoutError, BusyError):
            why = "late"
        except Exception:
            why = "failed"
            log.exception("a step of a decision failed", step="understand")
            self._failed("understand")
        if reading is None:
            reading = self._unread(arrival, hints, rules, late=why == "late")
        return self._understood(arrival, hints, reading, found, why=why, at=started)

    async def _found(
        self, arrival: Arrival, hints: Hints, reading: _Reading, *, score: bool, started: float
    ) -> Tokenised | None:
        """The prompt's tokens; None where there is no prompt, or nobody looks for them."""
        parsed = reading.parsed
        if parsed.prompt is None or not score:
            return None
        wait_s = min(self._settings.tokens_s, self.left_s(started, hints.timeout_s))
        body = reading.body or arrival.body
        return await self._tokens.resolve(parsed, parsed.prompt, wait_s=wait_s, body=body)

    def _ruled(self, parsers: Collection[str] | None) -> catalog.Rules:
        """The rules with these parsers. A plan keeps its own, for which they are made once."""
        if parsers is None:
            return self._rules
        if parsers is not self._parsers:
            self._parsers = parsers
            self._plan_rules = replace(self._rules, parsers=frozenset(parsers))
        return self._plan_rules

    def left_s(self, started: float, timeout_s: float | None) -> float:
        """Seconds until the deadline of a decision, 0 after it. `timeout_s`: when the gateway gives
        the request up; a decision has at most a quarter of that."""
        return max(0.0, self._within_s(timeout_s) - (self._clock() - started))

    def _within_s(self, timeout_s: float | None) -> float:
        limit_s = self._settings.deadline_s
        return limit_s if timeout_s is None else min(limit_s, timeout_s / 4)

    def _unread(
        self, arrival: Arrival, hints: Hints, rules: catalog.Rules, *, late: bool
    ) -> _Reading:
        """Stands in for what could not be read. Raises Saturated where it may have to be rewritten:
        which rule fits is not known, and the client's name may mean another model to the engine."""
        path = catalog.plain_path(arrival.path)
        named = bool(hints.model) or self._objectives.current.rewrites
        if late and named and catalog.suffix_of(path, rules):
            raise Saturated(
                "too many large requests are being read just now; try again a little later"
            )
        return _Reading(passthrough.unscored(path, "not parsed"), "")

    def _understood(
        self,
        arrival: Arrival,
        hints: Hints,
        reading: _Reading,
        found: Tokenised | None,
        *,
        why: str,
        at: float,
    ) -> Understood:
        parsed = reading.parsed
        output = parsed.output_tokens or self._settings.default_output_tokens
        text = parsed.prompt if isinstance(parsed.prompt, TextPrompt) else None
        request = Request(
            id=self._ids(),
            api=parsed.api,
            path=parsed.path,
            model=reading.asked,
            target_model=parsed.model,
            rewritten_by=reading.by,
            fairness_id=hints.fairness_id,
            objective=hints.objective,
            priority=self._objectives.priority(hints.objective),
            prompt_tokens=self._prompt_tokens(arrival, parsed, found),
            media_tokens=text.media_tokens if text is not None else 0,
            media=text.media if text is not None else (),
            output_tokens=min(output, self._settings.max_output_tokens),
            exact=found is not None and found.exact,
            keys=found.keys if found is not None else (),
            block_size=self._tokens.block_tokens,
            scored=found is not None,
            whole=parsed.whole,
            headers=arrival.headers,
            session=hints.session,
            slo_ttft_s=hints.slo_ttft_s,
            slo_tpot_s=hints.slo_tpot_s,
            timeout_s=hints.timeout_s,
            at=at,
        )
        rewritten = reading.body is not None
        return Understood(
            request=request,
            why=why,
            told=found.how if found is not None else parsed.unscored or "without tokens",
            body=reading.body,
            model=ModelName(reading.asked, parsed.model) if rewritten else None,
            notes=(reading.note,) if reading.note else (),
        )

    def _prompt_tokens(self, arrival: Arrival, parsed: Parsed, found: Tokenised | None) -> int:
        if found is not None:
            return found.tokens
        if parsed.prompt is not None:
            return self._tokens.size(parsed.prompt)
        if parsed.prompt_tokens is not None:
            return parsed.prompt_tokens
        return min(len(arrival.body) // 4, MAX_UNSCORED_TOKENS)


def _read(
    arrival: Arrival, said: str, rules: catalog.Rules, objectives: LiveObjectives
) -> _Reading:
    """Parse a request and call its model as the engine does. Raises Refusal.

    The model that counts is the body's, whatever a header says (fault G03).
    """
    parsed = catalog.parse(arrival, rules)
    reading = _renamed(arrival.body, parsed, said, objectives)
    catalog.admit(reading.parsed.model, rules)
    return reading


def _renamed(body: bytes, parsed: Parsed, said: str, objectives: LiveObjectives) -> _Reading:
    """With the name that the gateway `said`, unless a rule fits the client's own name."""
    asked = parsed.model
    rule = objectives.rewritten(asked)
    by, name = (rule.by, rule.model) if rule is not None else ("header", said)
    if not asked or not name or (rule is None and name == asked):
        return _Reading(parsed, asked)
    if name == asked:
        return _Reading(parsed, asked, by=by)
    edited = rewrite.with_model(body, name)
    if edited is None:
        return _Reading(parsed, asked, note="model not rewritten: not plain JSON")
    note = "model rewritten" if rule is None else f"model rewritten by {by}"
    return _Reading(replace(parsed, model=name), asked, edited, note, by)
