"""One request inside a simulated engine, and the tokens that the model answers it with. Pure."""

from array import array
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from epp.sim.submission import Submission
from epp.sim.tokenizer import ANSWER_IDS
from epp.sim.transfer import PullAsk


@dataclass(slots=True, eq=False)
class Job:
    """A request from its arrival to its end."""

    submission: Submission
    arrived: float
    digest: bytes
    """Seeds the answer."""
    tokens: list[int]
    pull: PullAsk | None
    """Where the KV of the prompt is to be had; None once it was pulled, or when it is computed."""
    hashes: list[int] = field(default_factory=list[int])
    """Of the full blocks of `tokens`, as far as somebody needed them."""
    blocks: list[int] = field(default_factory=list[int])
    hits: int = 0
    """Leading blocks that were in the cache when it got its blocks."""
    computed: int = 0
    """Tokens whose KV exists or is being computed by the batch in flight."""
    indexed: int = 0
    """Leading blocks that are in the index."""
    flaw: int = 0
    """0 while all KV that it looks at is what its tokens say; else what is wrong with it."""
    cached: int | None = None
    started: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    preemptions: int = 0
    running: bool = False

    @property
    def answered(self) -> int:
        return len(self.tokens) - len(self.submission.prompt)

    def next_token(self) -> int:
        """The next token of the answer: fixed by prompt, variant and seed, and by wrong KV."""
        data = self.digest + self.answered.to_bytes(4, "little")
        if self.flaw:
            data += self.flaw.to_bytes(8, "little")
        return ANSWER_IDS[xxh3_64_intdigest(data) % len(ANSWER_IDS)]

    def reset(self) -> None:
        """Nothing is computed any more; the blocks are somebody else's business."""
        self.blocks = []
        self.hits = self.computed = self.indexed = self.flaw = 0
        self.running = False


def new_job(submission: Submission, now: float, seed: int) -> Job:
    prompt = array("I", submission.prompt).tobytes() + submission.variant.to_bytes(4, "little")
    seen = "\0".join(item.name for item in submission.namespace.media)
    digest = xxh3_64_intdigest(prompt + seen.encode(), seed=seed)
    return Job(
        submission,
        now,
        digest.to_bytes(8, "little"),
        list(submission.prompt),
        submission.transfer.pull,
    )
