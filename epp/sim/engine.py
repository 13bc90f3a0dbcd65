"""A simulated LLM engine as a pure machine: admit requests, step the clock, take what comes out.

Rule 1: one call of `step(now)` first completes the batch that is due, then starts the next one and
says when to call again. Nothing happens between calls; a call too early changes nothing.
Rule 2: requests start in the order of their arrival. Each step spends a token budget: one token
for every decoding job, the rest on prompts, in chunks. A step lasts one decode step, grown
mildly with the batch, plus its prompt tokens at the prefill speed.
Rule 3: when blocks run out, the youngest running request loses its blocks and waits in front; its
prompt and answer are computed again (or found in the cache) later.
Rule 4: an answer depends on the prompt, the variant and the seed only, never on the batch, so equal
engines answer equally. Wrong KV under a prompt makes its answer wrong, always in the same way.
Rule 5: blocks are indexed when the batch that computes them starts, answered tokens included; the
last token of an answer is never computed, hence never indexed.
Rule 6: blocks of a prefill request stay pinned after its end (`pins`), those of a decode request
are pulled (`incoming`) while others run; whoever connects engines carries out what a step asks for.
Rule 7: an engine can die of a request. It then does nothing more, and refuses everything.
"""

from collections import deque
from collections.abc import Sequence

from epp.sim.hashing import NO_NAMESPACE, Content, Namespace
from epp.sim.incoming import Incoming
from epp.sim.job import Job, new_job
from epp.sim.memory import Memory
from epp.sim.settings import CoreSettings
from epp.sim.submission import (
    ContextOverflowError,
    Counters,
    Ending,
    EngineDeadError,
    Finish,
    Output,
    Pull,
    QueueFullError,
    Step,
    Submission,
)
from epp.sim.transfer import Misuse, PullAsk


class Engine:
    """One engine. Not thread-safe; `now` never goes back."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self._memory = Memory(settings)
        self.pool = self._memory.pool
        self.pins = self._memory.pins
        self.dead: str | None = None
        """Why the engine died; None while it lives."""
        self.incoming = Incoming(settings, self._memory, self.counters)
        self._waiting: deque[Job] = deque()
        self._stuck: dict[str, Job] = {}
        self._running: list[Job] = []
        self._live: dict[str, Job] = {}
        self._batch: list[Job] = []
        self._due: float | None = None
        self._failed: list[str] = []

    @property
    def waiting(self) -> int:
        """Requests that wait for whatever reason, for their KV too."""
        return len(self._waiting) + self.deferred

    @property
    def deferred(self) -> int:
        """Those that wait for their KV, or will for ever."""
        return len(self.incoming) + len(self._stuck)

    @property
    def before_pull(self) -> int:
        """Those whose pull has not begun, for want of blocks or of a place."""
        return sum(1 for job in self._waiting if job.pull is not None)

    @property
    def busy(self) -> bool:
        """Whether a batch is in flight: nothing can start before it ends."""
        return self._due is not None

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
        EngineDeadError when the engine is dead or dies of it, ValueError when the request itself
        makes no sense or its id is live.
        """
        if self.dead is not None:
            raise EngineDeadError
        if not submission.prompt or submission.max_tokens < 1:
            raise ValueError("a request needs a prompt and at least one token to answer")
        if submission.id in self._live:
            raise ValueError(f"request {submission.id} is live")
        wanted = len(submission.prompt) + submission.max_tokens
        if wanted > self.settings.context_tokens:
            raise ContextOverflowError(
                f"{wanted} tokens asked for, {self.settings.context_tokens} tokens of context"
            )
        if self.waiting >= self.settings.max_waiting:
            self.counters.refused += 1
            raise QueueFullError("too many requests wait")
        if submission.transfer.misuse is Misuse.FATAL:
            self._die("a request pulls and names no blocks")
            raise EngineDeadError
        job = new_job(submission, now, self.settings.seed)
        self._live[submission.id] = job
        if submission.transfer.misuse is Misuse.STUCK:
            self._stuck[submission.id] = job
        else:
            self._waiting.append(job)

    def abort(self, request_id: str) -> bool:
        """End a request wherever it is and release its blocks; False when it is not live."""
        job = self._live.pop(request_id, None)
        if job is None:
            return False
        self.counters.ended[Ending.ABORT] += 1
        if self._stuck.pop(request_id, None) is not None:
            self._die("a request left that pulls and does not say from where")
        elif job.running:
            self._leave(job)
        elif job in self.incoming:
            self.incoming.abandon(job)
        else:
            self._waiting.remove(job)
            if job.pull is not None:
                self.incoming.hand_back(job.pull)
        return True

    def step(self, now: float) -> Step:
        """Complete the batch that is due and start the next one."""
        outputs: list[Output] = []
        if self.dead is None:
            self.pins.expire(now)
            if self._due is not None and now >= self._due:
                outputs = [
                    self._sample(job, now)
                    for job in self._batch
                    if job.running and job.computed == len(job.tokens)
                ]
                self._batch, self._due = [], None
            if self._due is None:
                self._start_batch(now)
        failed, self._failed = tuple(self._failed), []
        return Step(
            tuple(outputs),
            self.pool.take_events(),
            self._next_at(),
            self.incoming.take_starts(),
            self.incoming.take_returns(),
            failed,
        )

    def pulled(self, pull: Pull, contents: Sequence[Content]) -> None:
        """What `pull` read in the other engine has arrived; call `step` if the engine is idle."""
        if self.dead is None:
            self.incoming.arrived(pull, contents)

    def pull_failed(self, pull: Pull) -> None:
        """`pull` could not be done; call `step` if the engine is idle."""
        job = self.incoming.failed(pull) if self.dead is None else None
        if job is None:
            return
        if self.settings.kv_load_failure_policy == "recompute":
            self._waiting.appendleft(job)
        else:
            del self._live[pull.id]
            self.counters.ended[Ending.ERROR] += 1
            self._failed.append(pull.id)

    def wanted_elsewhere(self) -> list[PullAsk]:
        """Blocks of other engines that requests here wait for: those want heartbeats."""
        return self.incoming.wanted(self._waiting) if self.dead is None else []

    def evict(
        self, prompt: Sequence[int] | None = None, namespace: Namespace = NO_NAMESPACE
    ) -> int:
        """Forget idle cached blocks, all or those of one prompt; the next step tells."""
        if prompt is None:
            return self.pool.evict_idle()
        hashes: list[int] = []
        self._memory.hasher.extend(hashes, prompt, namespace)
        return self.pool.evict_idle(hashes)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks at once; False, with nothing done, while any is held."""
        return self.pool.reset()

    def cached_prefix(self, prompt: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> int:
        """Tokens of a prompt that the cache holds."""
        hashes: list[int] = []
        self._memory.hasher.extend(hashes, prompt, namespace)
        return len(self.pool.lookup(hashes)) * self.settings.block_tokens

    def prefix_contents(self, hashes: Sequence[int]) -> list[Content]:
        """What the cache holds of a chain of hashes, from its start."""
        return [self.pool.read(block) for block in self.pool.lookup(hashes)]

    def hashes_of(self, prompt: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> list[int]:
        """The chain of a prompt's blocks that a request can start on: without its last token."""
        hashes: list[int] = []
        self._memory.hasher.extend(hashes, prompt, namespace)
        return hashes[: (len(prompt) - 1) // self.settings.block_tokens]

    def adopt(
        self, prompt: Sequence[int], namespace: Namespace, contents: Sequence[Content]
    ) -> int:
        """Cache what another engine holds of a prompt, from its start; returns how many blocks of
        it are new here, none where there is no room."""
        hashes = self.hashes_of(prompt, namespace)[: len(contents)]
        hits = self.pool.lookup(hashes)
        fresh = len(hashes) - len(hits)
        if fresh <= 0 or not self.pool.can_take(fresh, hits):
            return 0
        self.pool.hold(hits)
        blocks = [*hits, *self.pool.allocate(fresh)]
        self.pool.index(blocks, hashes, first=len(hits), tokens=prompt, namespace=namespace)
        for block, content in zip(blocks[len(hits) :], contents[len(hits) :], strict=True):
            self.pool.write(block, content)  # as it came, whatever is wrong with it
        self.pool.release(blocks)
        self.counters.fetched_blocks += fresh
        return fresh

    def _die(self, why: str) -> None:
        self.dead = why
        self._batch, self._due = [], None

    def _next_at(self) -> float | None:
        if self.dead is not None:
            return None
        times = [at for at in (self._due, self.pins.next_at) if at is not None]
        return min(times, default=None)

    def _start_batch(self, now: float) -> None:
        budget = self.settings.max_batched_tokens
        batch: list[Job] = []
        prefill = 0
        position = 0
        while position < len(self._running) and budget:
            job = self._running[position]
            count = min(len(job.tokens) - job.computed, budget)
            while not self._memory.grow(job, count):
                self._preempt(self._running[-1])
                if not job.running:
                    break
            if not job.running:
                break
            self._memory.compute(job, count)
            budget -= count
            prefill += count if not job.answered else count - 1
            batch.append(job)
            position += 1
        while budget and len(self._running) < self.settings.max_num_seqs:
            entered = self._next_job(budget, now)
            if entered is None:
                break
            job, count = entered
            budget -= count
            prefill += count
            batch.append(job)
        if batch and self.dead is None:
            grown = 1 + self.settings.batch_growth * (len(batch) - 1)
            duration = self.settings.decode_step_s * grown
            duration += prefill / self.settings.prefill_tokens_per_s
            self._batch, self._due = batch, now + duration

    def _next_job(self, budget: int, now: float) -> tuple[Job, int] | None:
        """Start a waiting request; returns it and its tokens in this batch, None without room."""
        if self.incoming.loaded:
            job = self.incoming.loaded.popleft()
            return job, self._run(job, 1, now)
        while self._waiting:
            job = self._waiting[0]
            hits, fresh = self._memory.find(job)
            # It starts when all of it fits, or its own later chunks would push others out.
            if not self.pool.can_take(fresh, hits):
                return None
            if job.pull is None:
                self._waiting.popleft()
                return job, self._enter(job, hits, budget, now)
            if not self._begin_pull(job, job.pull, hits, fresh):
                return None
        return None

    def _begin_pull(self, job: Job, ask: PullAsk, hits: list[int], fresh: int) -> bool:
        """Start the pull of the first waiting request; False when the engine dies of it."""
        if not ask.blocks and fresh == 1:
            # All but the last block is cached here, and that one is computed in any case.
            self.incoming.hand_back(ask)
            job.pull = None
        elif len(ask.blocks) < fresh:
            self._die("a request pulls fewer blocks than its prompt needs")
            return False
        else:
            self._waiting.popleft()
            self.incoming.begin(job, hits, fresh)
        return True

    def _enter(self, job: Job, hits: list[int], budget: int, now: float) -> int:
        """Run a request on top of what was found in the cache; returns its tokens in this batch."""
        cached = len(hits) * self.settings.block_tokens
        count = min(len(job.tokens) - cached, budget)
        self._memory.enter(job, hits, cached + count)
        if job.cached is None:
            job.cached = cached
            self.counters.start(len(job.submission.prompt), cached)
        return self._run(job, count, now)

    def _run(self, job: Job, count: int, now: float) -> int:
        job.running = True
        if job.started is None:
            job.started = now
        self._running.append(job)
        self._memory.compute(job, count)
        return count

    def _sample(self, job: Job, now: float) -> Output:
        index = job.answered
        token = job.next_token()
        job.tokens.append(token)
        self.counters.generation_tokens += 1
        if job.first_token is None:
            job.first_token = now
        else:
            self.counters.gaps += 1
            self.counters.gap_seconds += now - job.last_token
        job.last_token = now
        finish = None
        if job.answered >= job.submission.max_tokens:
            finish = self._finish(job, now)
        assert job.cached is not None
        return Output(job.submission.id, token, index, job.cached, finish)

    def _finish(self, job: Job, now: float) -> Finish:
        ending = Ending.STOP if job.submission.ends_by_itself else Ending.LENGTH
        self.counters.ended[ending] += 1
        del self._live[job.submission.id]
        offer = self._memory.pin(job, now) if job.submission.transfer.offer else None
        self._leave(job)
        assert job.started is not None
        assert job.first_token is not None
        return Finish(
            ending,
            arrived=job.arrived,
            started=job.started,
            first_token=job.first_token,
            ended=now,
            preemptions=job.preemptions,
            offer=offer,
        )

    def _preempt(self, job: Job) -> None:
        self._leave(job)
        job.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(job)

    def _leave(self, job: Job) -> None:
        self._running.remove(job)
        self._memory.release(job)
