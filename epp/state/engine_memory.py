"""A writer's memory of an engine's cache (`entries`) from its trees, and back."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from .engine_tier import Tier
from .engine_tree import Node
from .entries import NOT_HELD, NOT_SPANNING, Entries, Run, Tail
from .events import Hash


@dataclass(frozen=True, slots=True)
class _Grove:
    """The blocks of one tree at one moment. Only these two things of a block ever change."""

    tier: str
    group: int
    nodes: list[Node]
    references: list[int]
    linked: list[bool]


class Frozen:
    """All blocks that are held, at one moment. Taking it is quick; `entries` may run in a thread
    while events go on."""

    def __init__(self, tiers: Mapping[str, Tier], engine_seq: int | None) -> None:
        self._engine_seq = engine_seq
        self._groves: list[_Grove] = []
        for name, tier in tiers.items():
            for group, tree in tier.trees.items():
                nodes = list(tree.nodes.values())
                references = [node.references for node in nodes]
                linked = [node.linked for node in nodes]
                self._groves.append(_Grove(name, group, nodes, references, linked))

    def entries(self) -> Entries:
        """As columns."""
        runs: list[Run] = []
        nodes: list[Node] = []
        references: list[int] = []
        parents: list[int] = []
        tails: list[Tail] = []
        for grove in self._groves:
            order = sorted(range(len(grove.nodes)), key=lambda at: grove.nodes[at].seed)
            of_tree = [grove.nodes[at] for at in order]
            for seed, same in groupby(of_tree, attrgetter("seed")):
                runs.append(Run(grove.tier, grove.group, seed, sum(1 for _ in same)))
            rows = {node.hash: row for row, node in enumerate(of_tree, len(nodes))}
            parents += [_parent_row(grove.nodes[at], grove.linked[at], rows) for at in order]
            tails += _tails(of_tree, len(nodes))
            references += [grove.references[at] for at in order]
            nodes += of_tree
        return Entries(
            runs=tuple(runs),
            hashes=tuple([node.hash for node in nodes]),
            references=tuple(references),
            parents=tuple(parents),
            key_counts=tuple([len(node.keys) for node in nodes]),
            keys=tuple([key for node in nodes for key in node.keys]),
            tails=tuple(tails),
            engine_seq=self._engine_seq,
        )


def recall(entries: Entries) -> Iterator[tuple[str, int, list[Node]]]:
    """Tier, group and blocks of each run, to be restored in this order."""
    tails = {tail.row: tail for tail in entries.tails}
    open_ = {parent for parent in entries.parents if parent >= 0}
    row = at = 0
    for run in entries.runs:
        nodes = []
        for _ in range(run.count):
            node = Node(entries.hashes[row], run.seed)
            node.references = entries.references[row]
            node.keys = entries.keys[at : at + entries.key_counts[row]]
            at += entries.key_counts[row]
            parent = entries.parents[row]
            node.parent = entries.hashes[parent] if parent >= 0 else None
            node.linked = parent != NOT_HELD
            _continue(node, tails.get(row), is_open=row in open_)
            nodes.append(node)
            row += 1
        yield run.tier, run.group, nodes


def _tails(nodes: Sequence[Node], first: int) -> Iterator[Tail]:
    """Of blocks at which a chain ends or forks inside an own block."""
    continued = Counter(node.parent for node in nodes)
    for row, node in enumerate(nodes, first):
        if node.tail != b"" and continued[node.hash] != 1:
            yield Tail(row, node.chain, node.tail, node.extra)


def _parent_row(node: Node, linked: bool, rows: Mapping[Hash, int]) -> int:
    if node.parent is not None:
        return rows.get(node.parent, NOT_HELD)
    return NOT_SPANNING if linked else NOT_HELD


def _continue(node: Node, tail: Tail | None, *, is_open: bool) -> None:
    """Say how the chain goes on behind a block: its tail is told, empty or unknown."""
    if tail is not None:
        node.chain, node.tail, node.extra = tail.chain, tail.tokens, tail.extra
    elif is_open or not node.keys:
        node.tail = None
    else:
        node.chain = node.keys[-1]
