"""One KV group's blocks as the engine holds them, and the own keys that they complete.

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

from .blocks import block_key
from .events import Hash


class Node:
    """One engine block in the cache."""

    __slots__ = ("chain", "extra", "hash", "keys", "linked", "parent", "references", "tail")

    def __init__(self, hash_: Hash) -> None:
        self.hash = hash_
        self.parent: Hash | None = None
        """Hash of the block before it, if this one spans: if it begins inside an own block."""
        self.references = 1
        self.keys: tuple[int, ...] = ()
        """Own keys that it completes."""
        self.chain = 0
        """Last own key at or before its end, or the root."""
        self.tail = b""
        """Packed tokens after that key."""
        self.extra = b""
        """Identities of what isn't text in the blocks that the tail reaches into."""
        self.linked = True
        """Whether all blocks between it and the own block's start before it are held."""


class Tree:
    """The blocks of one group. `before_flip` hears of a key just before it comes or goes."""

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
        self, hash_: Hash, parent: Node | None, root: int, tokens: bytes, extra: bytes
    ) -> Node:
        """Add a block that isn't held. `parent` is; `root` begins the chain where it is None."""
        node = Node(hash_)
        self._extend(node, parent, root, tokens, extra)
        if parent is not None and parent.tail:
            node.parent = parent.hash
            # A parent with own keys closed the own block before: its tail is in itself.
            node.linked = parent.linked or bool(parent.keys)
            self._wait(node)
        self.nodes[hash_] = node
        for key in self._own_of(node):
            self._credit(key)
        self._relink(node.hash, node.linked or bool(node.keys))
        return node

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

    def _extend(
        self, node: Node, parent: Node | None, root: int, tokens: bytes, extra: bytes
    ) -> None:
        chain = root if parent is None else parent.chain
        data = tokens if parent is None else parent.tail + tokens
        mixed = extra if parent is None else parent.extra + extra
        own = self._own_bytes
        keys: list[int] = []
        for end in range(own, len(data) + 1, own):
            chain = block_key(chain, data[end - own : end], extra if keys else mixed)
            keys.append(chain)
        node.keys = tuple(keys)
        node.chain = chain
        node.tail = data[len(keys) * own :]
        if node.tail:
            node.extra = extra if keys else mixed

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
