"""Every small change of a module that its tests ought to notice.

Comparisons, logic, arithmetic, constants, conditions and whole statements. Left out is what has no
behaviour (annotations, names of types, docstrings) or only a wording: text with a blank in it is a
sentence.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed module, compiled."""

    line: int
    before: str
    after: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.line}: {self.before}  ->  {self.after}"


def mutants(source: str, filename: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    module = ast.parse(source)
    skipped = _without_behaviour(module)
    found = [
        _mutant(module, filename, spot, after)
        for spot in list(_spots(module))
        if id(spot.node) not in skipped
        for after in _variants(spot.node)
    ]
    return sorted(found, key=lambda mutant: mutant.line)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a node hangs in its tree."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _spots(module: ast.Module) -> Iterator[_Spot]:
    for parent in ast.walk(module):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.AST):
                yield _Spot(value, parent, field, None)
            elif isinstance(value, list):
                yield from (
                    _Spot(node, parent, field, index)
                    for index, node in enumerate(value)
                    if isinstance(node, ast.AST)
                )


def _mutant(module: ast.Module, filename: str, spot: _Spot, after: ast.AST) -> Mutant:
    before = spot.node
    ast.copy_location(after, before)
    spot.put(ast.fix_missing_locations(after))
    try:
        code = compile(module, filename, "exec")
    finally:
        spot.put(before)
    return Mutant(getattr(before, "lineno", 0), _shown(before), _shown(after), code)


def _without_behaviour(module: ast.Module) -> set[int]:
    """Nodes, by identity, that no test could notice: annotations, docstrings, imports."""
    found: set[int] = set()
    for node in ast.walk(module):
        out: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            out.append(node.annotation)
            if isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias":
                out.append(node)
        elif isinstance(node, ast.arg):
            out.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            out += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            out += node.decorator_list
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            out.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"TypeVar", "NewType"}:
            out += node.args
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
            # What a field's default is made of is its type once more.
            out += [word.value for word in node.keywords if word.arg != "default"]
        found.update(id(each) for top in out if top is not None for each in ast.walk(top))
    return found


def _variants(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            return [ast.Compare(node.left, [_COMPARE[type(op)]()], node.comparators)]
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return [ast.BoolOp(other, node.values)]
        case ast.UnaryOp(op=ast.Not()):
            return [node.operand]
        case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_union(node):
            return [ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)]
        case ast.AugAssign() if type(node.op) in _ARITHMETIC:
            other_op = _ARITHMETIC[type(node.op)]()
            return [
                ast.AugAssign(node.target, other_op, node.value),
                ast.Assign([node.target], node.value),
            ]
        case ast.Constant():
            return _constants(node.value)
        case ast.If() | ast.While() | ast.IfExp():
            return _conditions(node)
        case ast.Expr(value=ast.Call()):
            return [ast.Pass()]
        case ast.Assign(targets=[ast.Attribute()]):
            return [ast.Pass()]
        case ast.Return(value=ast.Call() | ast.Tuple()):
            return [ast.Return(ast.Constant(None))]
    return []


def _conditions(node: ast.If | ast.While | ast.IfExp) -> list[ast.AST]:
    """The other way, where the condition is not one that changes by itself."""
    if isinstance(node.test, ast.Compare | ast.UnaryOp):
        return []
    changed = copy.copy(node)
    changed.test = ast.UnaryOp(ast.Not(), node.test)
    return [changed]


def _constants(value: object) -> list[ast.AST]:
    if isinstance(value, bool):
        return [ast.Constant(not value)]
    if isinstance(value, int | float):
        return [ast.Constant(value + 1)]
    if isinstance(value, bytes):
        return [ast.Constant(value + b"?")]
    if isinstance(value, str) and " " not in value:
        return [ast.Constant(value + "?")]
    return []


def _is_union(node: ast.BinOp) -> bool:
    """`A | B` between types, in an alias."""
    sides = (node.left, node.right)
    return isinstance(node.op, ast.BitOr) and any(
        isinstance(side, ast.Name) and side.id[:1].isupper() for side in sides
    )


def _shown(node: ast.AST) -> str:
    """The first line of a node, short enough for a report."""
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 90 else text[:87] + "..."
