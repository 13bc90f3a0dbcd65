"""Requests of a decode engine whose KV comes from a prefill engine. Pure.

Rule 1: a request gets blocks for its whole prompt before its pull starts, and keeps them until the
pull has ended, even when its client has left meanwhile: the hardware may be writing into them.
Rule 2: only what the own cache lacks is pulled, counted from the end of the offered blocks, so
blocks of another prompt go where the right ones should. Their content is kept as it came; whatever
is computed on top of it is wrong, and stays in the cache under the right hash.
Rule 3: everything of a pulled prompt is there but its last token, which is computed again.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from epp.sim.hashing import Content, mixed
from epp.sim.job import Job
from epp.sim.memory import Memory
from epp.sim.settings import CoreSettings
from epp.sim.submission import Counters, Pull
from epp.sim.transfer import PullAsk


class Incoming:
    """The pulls of one engine."""

    def __init__(self, settings: CoreSettings, memory: Memory, counters: Counters) -> None:
        self._settings = settings
        self._memory = memory
        self._counters = counters
        self._abandoned: dict[str, Job] = {}
        self._starts: list[Pull] = []
        self._returns: list[PullAsk] = []
        self.loading: dict[str, Job] = {}
        """Their pull is under way."""
        self.loaded: deque[Job] = deque()
        """Their KV is here; they wait for a place in a batch."""

    def __len__(self) -> int:
        return len(self.loading) + len(self.loaded)

    def __contains__(self, job: Job) -> bool:
        return job.submission.id in self.loading or job in self.loaded

    @property
    def pulling(self) -> int:
        """Pulls under way, those that nobody waits for included."""
        return len(self.loading) + len(self._abandoned)

    def take_starts(self) -> tuple[Pull, ...]:
        """Pulls that began since the last call."""
        starts, self._starts = tuple(self._starts), []
        return starts

    def take_returns(self) -> tuple[PullAsk, ...]:
        """Blocks elsewhere that are not wanted any more, since the last call."""
        returns, self._returns = tuple(self._returns), []
        return returns

    def begin(self, job: Job, hits: list[int], fresh: int) -> None:
        """Give a request its blocks and start its pull. `fresh` is 1 at least, and can be taken."""
        assert job.pull is not None
        self._memory.enter(job, hits, len(job.tokens))
        # The last offered block may be one that the prompt only begins: it counts in full.
        tokens = fresh * self._settings.block_tokens
        duration = self._settings.pull_setup_s + tokens / self._settings.pull_tokens_per_s
        name = job.submission.id
        self.loading[name] = job
        self._starts.append(Pull(name, job.pull, job.pull.blocks[-fresh:], duration))

    def hand_back(self, ask: PullAsk) -> None:
        """Tell the other engine that nobody will read these blocks."""
        self._returns.append(ask)

    def abandon(self, job: Job) -> None:
        """The client of a loading or loaded request has left."""
        if self.loading.pop(job.submission.id, None) is not None:
            self._abandoned[job.submission.id] = job
        else:
            self.loaded.remove(job)
            self._memory.release(job)

    def arrived(self, pull: Pull, contents: Sequence[Content]) -> None:
        """A pull has ended well. Unknown ones are ignored."""
        counters = self._counters
        counters.pulls += 1
        counters.pulled_blocks += len(pull.blocks)
        counters.pull_seconds += pull.duration_s
        job = self._ended(pull.id)
        if job is None:
            return
        size = self._settings.block_tokens
        full = len(job.tokens) // size
        tail = self._memory.hasher.tail(job.hashes, job.tokens, job.submission.namespace)
        wanted = [*job.hashes[job.hits : full], *([tail] if tail else [])]
        # What was pulled is as it came, whatever is wrong with the blocks found here.
        flaw, job.flaw = job.flaw, 0
        self._memory.compute(job, len(job.tokens) - 1 - job.computed)
        for block, content, key in zip(job.blocks[job.hits :], contents, wanted, strict=True):
            if key not in content:
                self._memory.pool.write(block, content)
                flaw = mixed(flaw, content[0])
        job.flaw = flaw
        job.pull = None
        job.cached = job.hits * size
        counters.start(len(job.tokens), job.cached, len(job.tokens) - job.cached)
        self.loaded.append(job)

    def failed(self, pull: Pull) -> Job | None:
        """A pull has failed; returns the request, without blocks, if somebody waits for it."""
        self._counters.failed_pulls += 1
        job = self._ended(pull.id)
        if job is not None:
            self._memory.release(job)
            job.pull = None
        return job

    def wanted(self, waiting: Iterable[Job]) -> list[PullAsk]:
        """Blocks elsewhere that requests wait for, those in the queue included."""
        asks = [job.pull for job in (*waiting, *self.loading.values())]
        return [ask for ask in asks if ask is not None and ask.heartbeats]

    def _ended(self, name: str) -> Job | None:
        abandoned = self._abandoned.pop(name, None)
        if abandoned is not None:
            self._memory.release(abandoned)
        return self.loading.pop(name, None)
