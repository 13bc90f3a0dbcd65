"""One KV group's blocks on one tier as the engine holds them, and the own keys that they complete.

Engine blocks and own blocks are cut from the same prompt at different places. Each engine block
remembers how far the chain of own keys had come at its end: the last own key, and the tokens after
it (its tail). So a child can go on from its parent alone, whatever their sizes.

An own key belongs to the engine block that completes it. It is credited while that block and all
others that cover it are held. Blocks inside that one are its own affair; only its first own key can
reach back into blocks before it (the block then *spans*). Where one of those leaves, the spanning
ones behind it lose that key, and get it back when it returns: they wait under its hash.
Two prompts may complete the same own key with different engine blocks, hence the counts.
"""

from collections.abc import Callable

from .blocks import TOKEN_BYTES, chained, local_hash
from .engine_extras import NOTHING, Extras
from .events import Hash


class Node:
    """One engine block in the cache."""

    __slots__ = (
        "chain", "extra", "hash", "keys", "linked", "parent", "references", "seed", "tail",
    )  # fmt: skip

    def __init__(self, hash_: Hash, seed: int) -> None:
        self.hash = hash_
        self.seed = seed
        """Of the chain that it is in."""
        self.parent: Hash | None = None
        """Hash of the block before it, if this one spans: if it begins inside an own block."""
        self.references = 1
        self.keys: tuple[int, ...] = ()
        """Own keys that it completes."""
        self.chain: int | None = None
        """Last own key at or before its end; None before the first."""
        self.tail: bytes | None = b""
        """Packed tokens after that key; None where they aren't known (`entries`)."""
        self.extra = b""
        """What isn't text in the tail, as `blocks.local_hash` takes it."""
        self.linked = True
        """Whether all blocks between it and the own block's start before it are held."""


class Tree:
    """The blocks of one group on one tier. `before_flip` hears of a key just before it comes or
    goes."""

    __slots__ = ("_before_flip", "_own_bytes", "_waiting", "credited", "nodes")

    def __init__(self, own_bytes: int, before_flip: Callable[[int], None]) -> None:
        self._own_bytes = own_bytes
        self._before_flip = before_flip
        self.nodes: dict[Hash, Node] = {}
        self.credited: dict[int, int] = {}
        """Own key: how many held engine blocks complete it."""
        self._waiting: dict[Hash, Node | dict[Node, None]] = {}
        """Spanning blocks by the hash of the block before them, which need not be held."""

    def store(
        self, hash_: Hash, parent: Node | None, seed: int, tokens: bytes, extras: Extras = NOTHING
    ) -> Node:
        """Add a block that isn't held. `parent` is held here or on another tier, and has a tail;
        `seed` begins the chain where it is None."""
        node = Node(hash_, seed if parent is None else parent.seed)
        self._extend(node, parent, tokens, extras)
        if parent is not None and parent.tail:
            node.parent = parent.hash
        return self._add(node)

    def copy(self, origin: Node) -> Node:
        """Add a block that isn't held here but on another tier, where it is `origin`."""
        node = Node(origin.hash, origin.seed)
        node.parent = origin.parent
        node.keys, node.chain = origin.keys, origin.chain
        node.tail, node.extra = origin.tail, origin.extra
        return self._add(node)

    def restore(self, node: Node) -> None:
        """Add a block that a memory tells of; its references and all else are as it says."""
        self._add(node)

    def remove(self, hash_: Hash) -> bool:
        """Take one reference away; True when that was the last and the block is gone."""
        node = self.nodes[hash_]
        node.references -= 1
        if node.references:
            return False
        for key in self._own_of(node):
            self._debit(key)
        self._relink(hash_, linked=False)
        if node.parent is not None:
            self._unwait(node)
        del self.nodes[hash_]
        return True

    def _add(self, node: Node) -> Node:
        if node.parent is not None:
            before = self.nodes.get(node.parent)
            # A parent with own keys closed the own block before: its tail is in itself.
            node.linked = before is not None and (before.linked or bool(before.keys))
            self._wait(node)
        self.nodes[node.hash] = node
        for key in self._own_of(node):
            self._credit(key)
        self._relink(node.hash, node.linked or bool(node.keys))
        return node

    def _extend(self, node: Node, parent: Node | None, tokens: bytes, extras: Extras) -> None:
        own = self._own_bytes
        open_, before = (b"", b"") if parent is None else (parent.tail or b"", parent.extra)
        chain = None if parent is None else parent.chain
        data = open_ + tokens
        shift = len(open_) // TOKEN_BYTES
        keys: list[int] = []
        for end in range(own, len(data) + 1, own):
            block = data[end - own : end]
            extra = extras.within(end - own, end, shift) if extras else b""
            local = local_hash(block, node.seed, extra if keys else before + extra)
            chain = chained(chain, local, node.seed)
            keys.append(chain)
        node.keys = tuple(keys)
        node.chain = chain
        whole = len(keys) * own
        node.tail = data[whole:]
        if node.tail:
            extra = extras.within(whole, whole + own, shift) if extras else b""
            node.extra = extra if keys else before + extra

    def _own_of(self, node: Node) -> tuple[int, ...]:
        return node.keys if node.linked else node.keys[1:]

    def _relink(self, hash_: Hash, linked: bool) -> None:
        """Tell the spanning blocks behind `hash_`, and theirs, whether they reach back unbroken."""
        todo = [hash_]
        while todo:
            behind = self._waiting.get(todo.pop())
            if behind is None:
                continue
            for node in (behind,) if isinstance(behind, Node) else behind:
                if node.linked == linked:
                    continue
                node.linked = linked
                if not node.keys:
                    todo.append(node.hash)
                elif linked:
                    self._credit(node.keys[0])
                else:
                    self._debit(node.keys[0])

    def _credit(self, key: int) -> None:
        count = self.credited.get(key, 0)
        if not count:
            self._before_flip(key)
        self.credited[key] = count + 1

    def _debit(self, key: int) -> None:
        count = self.credited[key]
        if count > 1:
            self.credited[key] = count - 1
            return
        self._before_flip(key)
        del self.credited[key]

    def _wait(self, node: Node) -> None:
        assert node.parent is not None
        there = self._waiting.get(node.parent)
        if there is None:
            self._waiting[node.parent] = node  # most have one successor: spare it the dict
        elif isinstance(there, Node):
            self._waiting[node.parent] = {there: None, node: None}
        else:
            there[node] = None

    def _unwait(self, node: Node) -> None:
        assert node.parent is not None
        there = self._waiting[node.parent]
        if isinstance(there, Node):
            del self._waiting[node.parent]
            return
        del there[node]
        if not there:
            del self._waiting[node.parent]
