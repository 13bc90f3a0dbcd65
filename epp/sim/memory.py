"""What a request does with the KV blocks of its engine, from the first block to the last. Pure."""

from epp.sim.hashing import BlockHasher, mixed
from epp.sim.job import Job
from epp.sim.kv import BlockPool
from epp.sim.pins import Pins
from epp.sim.settings import CoreSettings
from epp.sim.transfer import Offer


class Memory:
    """The blocks of one engine as its requests see them."""

    def __init__(self, settings: CoreSettings) -> None:
        self.block_tokens = settings.block_tokens
        self.pool = BlockPool(settings.num_blocks, settings.block_tokens, settings.hash_seed)
        self.pins = Pins(self.pool, settings.lease_s)
        self.hasher = BlockHasher(settings.block_tokens)

    def find(self, job: Job) -> tuple[list[int], int]:
        """Cached blocks that a request can start on, and how many more all its tokens need.

        The last token is always computed, for it yields the next one: at least one is needed.
        """
        self.hasher.extend(job.hashes, job.tokens, job.submission.namespace)
        hits = self.pool.lookup(job.hashes[: (len(job.tokens) - 1) // self.block_tokens])
        return hits, self._blocks(len(job.tokens)) - len(hits)

    def enter(self, job: Job, hits: list[int], tokens: int) -> None:
        """Give a request found blocks, and fresh ones up to so many tokens, which can be taken."""
        self.pool.hold(hits)
        job.blocks = [*hits, *self.pool.allocate(self._blocks(tokens) - len(hits))]
        job.flaw = self.pool.flaw(hits, job.hashes)
        job.hits = job.indexed = len(hits)
        job.computed = len(hits) * self.block_tokens

    def grow(self, job: Job, count: int) -> bool:
        """Give a running request the blocks for `count` more tokens, if there are any."""
        fresh = self._blocks(job.computed + count) - len(job.blocks)
        if fresh > 0:
            if not self.pool.can_take(fresh):
                return False
            job.blocks += self.pool.allocate(fresh)
        return True

    def compute(self, job: Job, count: int) -> None:
        """Count tokens as computed by the batch that starts, and index the blocks they fill."""
        job.computed += count
        full = job.computed // self.block_tokens
        if full <= job.indexed:
            return
        namespace = job.submission.namespace
        self.hasher.extend(job.hashes, job.tokens, namespace)
        self.pool.index(
            job.blocks,
            job.hashes[:full],
            first=job.indexed,
            tokens=job.tokens,
            namespace=namespace,
            flaw=job.flaw,
        )
        job.indexed = full

    def pin(self, job: Job, now: float) -> Offer:
        """Keep the blocks of a request that ends for another engine; it owns them no more."""
        prompt = job.submission.prompt
        tail = self.hasher.tail(job.hashes, prompt, job.submission.namespace)
        if tail:
            block = job.blocks[len(prompt) // self.block_tokens]
            self.pool.end_prompt(block, mixed(tail, job.flaw) if job.flaw else tail)
        self.pins.issue(job.submission.id, job.blocks, now)
        assert job.cached is not None
        offer = Offer(
            request_id=job.submission.id,
            blocks=tuple(job.blocks),
            tokens=job.computed,
            cached_tokens=job.cached,
        )
        job.blocks = []
        return offer

    def release(self, job: Job) -> None:
        """Let go of a request's blocks; whatever it has computed stays only in the cache."""
        self.pool.release(job.blocks)
        job.reset()

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
