"""A simulated LLM engine as a pure machine: admit requests, step the clock, take what comes out.

Rule 1: one call of `step(now)` first completes the batch that is due, then starts the next one and
says when to call again. Nothing happens between calls; a call too early changes nothing.
Rule 2: requests start in the order of their arrival. Each step spends a token budget: one token
for every decoding sequence, the rest on prompts, in chunks. A step lasts one decode step, grown
mildly with the batch, plus its prompt tokens at the prefill speed.
Rule 3: when blocks run out, the youngest running request loses its blocks and waits in front; its
prompt and answer are computed again (or found in the cache) later.
Rule 4: an answer depends on the prompt, the variant and the seed only, never on the batch, so equal
engines answer equally.
Rule 5: blocks are indexed when the batch that computes them starts, answered tokens included; the
last token of an answer is never computed, hence never indexed.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from epp.sim.kv import NO_NAMESPACE, BlockHasher, BlockPool, Namespace
from epp.sim.settings import CoreSettings
from epp.sim.submission import (
    ContextOverflowError,
    Counters,
    Ending,
    Finish,
    Output,
    QueueFullError,
    Step,
    Submission,
)
from epp.sim.tokenizer import ANSWER_IDS


@dataclass(slots=True, eq=False)
class _Sequence:
    """One request inside the engine."""

    submission: Submission
    arrived: float
    digest: bytes
    """Seeds the answer."""
    tokens: list[int]
    hashes: list[int]
    """Of the full blocks of `tokens`, as far as somebody needed them."""
    blocks: list[int] = field(default_factory=list[int])
    computed: int = 0
    """Tokens whose KV exists or is being computed by the batch in flight."""
    indexed: int = 0
    """Leading blocks that are in the index."""
    cached: int | None = None
    started: float | None = None
    first_token: float | None = None
    preemptions: int = 0
    running: bool = False

    @property
    def answered(self) -> int:
        return len(self.tokens) - len(self.submission.prompt)


class Engine:
    """One engine. Not thread-safe; `now` never goes back."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.pool = BlockPool(settings.num_blocks, settings.block_tokens)
        self._hasher = BlockHasher(settings.block_tokens, settings.hash_seed)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._live: dict[str, _Sequence] = {}
        self._batch: list[_Sequence] = []
        self._due: float | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def kv_usage(self) -> float:
        """Share of blocks in use by running requests, 0 to 1."""
        return self.pool.used / self.pool.total

    def admit(self, submission: Submission, now: float) -> None:
        """Queue a request; call `step` if the engine was idle.

        Raises ContextOverflowError when it can never fit, QueueFullError when too many wait,
        ValueError when the request itself makes no sense or its id is live.
        """
        if not submission.prompt or submission.max_tokens < 1:
            raise ValueError("a request needs a prompt and at least one token to answer")
        if submission.id in self._live:
            raise ValueError(f"request {submission.id} is live")
        wanted = len(submission.prompt) + submission.max_tokens
        if wanted > self.settings.context_tokens:
            raise ContextOverflowError(
                f"{wanted} tokens asked for, {self.settings.context_tokens} tokens of context"
            )
        if len(self._waiting) >= self.settings.max_waiting:
            self.counters.refused += 1
            raise QueueFullError("too many requests wait")
        sequence = _Sequence(submission, now, self._digest(submission), list(submission.prompt), [])
        self._live[submission.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """End a request wherever it is and release its blocks; False when it is not live."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        self.counters.ended[Ending.ABORT] += 1
        if sequence.running:
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        return True

    def step(self, now: float) -> Step:
        """Complete the batch that is due and start the next one."""
        outputs: list[Output] = []
        if self._due is not None and now >= self._due:
            outputs = [
                self._sample(sequence, now)
                for sequence in self._batch
                if sequence.running and sequence.computed == len(sequence.tokens)
            ]
            self._batch, self._due = [], None
        if self._due is None:
            self._start_batch(now)
        return Step(tuple(outputs), self.pool.take_events(), self._due)

    def evict(
        self, prompt: Sequence[int] | None = None, namespace: Namespace = NO_NAMESPACE
    ) -> int:
        """Forget idle cached blocks, all or those of one prompt; the next step tells."""
        if prompt is None:
            return self.pool.evict_idle()
        hashes: list[int] = []
        self._hasher.extend(hashes, prompt, namespace)
        return self.pool.evict_idle(hashes)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks at once; False, with nothing done, while any is held."""
        return self.pool.reset()

    def cached_prefix(self, prompt: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> int:
        """Tokens of a prompt that the cache holds."""
        hashes: list[int] = []
        self._hasher.extend(hashes, prompt, namespace)
        return len(self.pool.lookup(hashes)) * self.settings.block_tokens

    def _digest(self, submission: Submission) -> bytes:
        prompt = array("I", submission.prompt).tobytes()
        seed = self.settings.seed
        digest = xxh3_64_intdigest(prompt + submission.variant.to_bytes(4, "little"), seed=seed)
        return digest.to_bytes(8, "little")

    def _start_batch(self, now: float) -> None:
        budget = self.settings.max_batched_tokens
        batch: list[_Sequence] = []
        prefill = 0
        position = 0
        while position < len(self._running) and budget:
            sequence = self._running[position]
            count = min(len(sequence.tokens) - sequence.computed, budget)
            while not self._grow(sequence, count):
                self._preempt(self._running[-1])
                if not sequence.running:
                    break
            if not sequence.running:
                break
            self._schedule(sequence, count)
            budget -= count
            prefill += count if not sequence.answered else count - 1
            batch.append(sequence)
            position += 1
        while self._waiting and budget:
            if len(self._running) >= self.settings.max_num_seqs:
                break
            sequence = self._waiting[0]
            count = self._enter(sequence, budget, now)
            if not count:
                break
            budget -= count
            prefill += count
            batch.append(sequence)
        if batch:
            grown = 1 + self.settings.batch_growth * (len(batch) - 1)
            duration = self.settings.decode_step_s * grown
            duration += prefill / self.settings.prefill_tokens_per_s
            self._batch, self._due = batch, now + duration

    def _enter(self, sequence: _Sequence, budget: int, now: float) -> int:
        """Move the first waiting request into the batch; returns its tokens, 0 without room."""
        self._hasher.extend(sequence.hashes, sequence.tokens, sequence.submission.namespace)
        # The last token is always computed: it yields the first token of the answer.
        size = self.settings.block_tokens
        hits = self.pool.lookup(sequence.hashes[: (len(sequence.tokens) - 1) // size])
        cached = len(hits) * size
        count = min(len(sequence.tokens) - cached, budget)
        # It starts when all of it fits, or its own later chunks would push others out.
        if not self.pool.can_take(-(-len(sequence.tokens) // size) - len(hits), hits):
            return 0
        fresh = -(-(cached + count) // size) - len(hits)
        self.pool.hold(hits)
        sequence.blocks = [*hits, *self.pool.allocate(fresh)]
        sequence.computed, sequence.indexed = cached, len(hits)
        sequence.running = True
        self._waiting.popleft()
        self._running.append(sequence)
        if sequence.cached is None:
            sequence.cached, sequence.started = cached, now
            prompt = len(sequence.submission.prompt)
            self.counters.prompt_tokens += prompt
            self.counters.cached_tokens += cached
            self.counters.prefix_queries += prompt
            self.counters.prefix_hits += cached
        self._schedule(sequence, count)
        return count

    def _grow(self, sequence: _Sequence, count: int) -> bool:
        """Give a running request the blocks for `count` more tokens, if there are any."""
        size = self.settings.block_tokens
        fresh = -(-(sequence.computed + count) // size) - len(sequence.blocks)
        if fresh > 0:
            if not self.pool.can_take(fresh):
                return False
            sequence.blocks += self.pool.allocate(fresh)
        return True

    def _schedule(self, sequence: _Sequence, count: int) -> None:
        """Count tokens as computed by the batch that starts, and index the blocks they fill."""
        sequence.computed += count
        full = sequence.computed // self.settings.block_tokens
        if full <= sequence.indexed:
            return
        namespace = sequence.submission.namespace
        self._hasher.extend(sequence.hashes, sequence.tokens, namespace)
        self.pool.index(
            sequence.blocks,
            sequence.hashes[:full],
            first=sequence.indexed,
            tokens=sequence.tokens,
            namespace=namespace,
        )
        sequence.indexed = full

    def _sample(self, sequence: _Sequence, now: float) -> Output:
        index = sequence.answered
        choice = xxh3_64_intdigest(sequence.digest + index.to_bytes(4, "little"))
        token = ANSWER_IDS[choice % len(ANSWER_IDS)]
        sequence.tokens.append(token)
        self.counters.generation_tokens += 1
        if sequence.first_token is None:
            sequence.first_token = now
        finish = None
        if sequence.answered >= sequence.submission.max_tokens:
            finish = self._finish(sequence, now)
        assert sequence.cached is not None
        return Output(sequence.submission.id, token, index, sequence.cached, finish)

    def _finish(self, sequence: _Sequence, now: float) -> Finish:
        ending = Ending.STOP if sequence.submission.ends_by_itself else Ending.LENGTH
        self.counters.ended[ending] += 1
        del self._live[sequence.submission.id]
        self._leave(sequence)
        assert sequence.started is not None
        assert sequence.first_token is not None
        return Finish(
            ending,
            arrived=sequence.arrived,
            started=sequence.started,
            first_token=sequence.first_token,
            ended=now,
            preemptions=sequence.preemptions,
        )

    def _preempt(self, sequence: _Sequence) -> None:
        self._leave(sequence)
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: _Sequence) -> None:
        self._running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.running = False
        sequence.computed = sequence.indexed = 0
