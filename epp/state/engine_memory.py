"""A writer's memory of an engine's cache (`entries`) from its trees, and back."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from .engine_tier import Tier
from .engine_tree import Node, Tree
from .entries import NOT_HELD, NOT_SPANNING, Entries, Run, Tail
from .events import Hash


def remember(tiers: Mapping[str, Tier], engine_seq: int | None) -> Entries:
    """All blocks that are held, as columns."""
    runs: list[Run] = []
    nodes: list[Node] = []
    parents: list[int] = []
    tails: list[Tail] = []
    for name, tier in tiers.items():
        for group, tree in tier.trees.items():
            of_tree = sorted(tree.nodes.values(), key=attrgetter("seed"))
            for seed, same in groupby(of_tree, attrgetter("seed")):
                runs.append(Run(name, group, seed, sum(1 for _ in same)))
            first = len(nodes)
            rows = {node.hash: first + at for at, node in enumerate(of_tree)}
            parents += [_parent_row(node, rows) for node in of_tree]
            tails += [_tail(rows[node.hash], node) for node in of_tree if _is_end(tree, node)]
            nodes += of_tree
    return Entries(
        runs=tuple(runs),
        hashes=tuple(node.hash for node in nodes),
        references=tuple(node.references for node in nodes),
        parents=tuple(parents),
        key_counts=tuple(len(node.keys) for node in nodes),
        keys=tuple(key for node in nodes for key in node.keys),
        tails=tuple(tails),
        engine_seq=engine_seq,
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


def _is_end(tree: Tree, node: Node) -> bool:
    """Whether a chain ends or forks at this block, inside an own block."""
    return node.tail != b"" and tree.continued(node) != 1


def _tail(row: int, node: Node) -> Tail:
    return Tail(row, node.chain, node.tail, node.extra)


def _parent_row(node: Node, rows: Mapping[Hash, int]) -> int:
    if node.parent is not None:
        return rows.get(node.parent, NOT_HELD)
    return NOT_SPANNING if node.linked else NOT_HELD


def _continue(node: Node, tail: Tail | None, *, is_open: bool) -> None:
    """Say how the chain goes on behind a block: its tail is told, empty or unknown."""
    if tail is not None:
        node.chain, node.tail, node.extra = tail.chain, tail.tokens, tail.extra
    elif is_open or not node.keys:
        node.tail = None
    else:
        node.chain = node.keys[-1]
