"""Whether a chat template wants a message's content as text or as a list of parts. Pure.

Engines look whether the template loops over the content of a message. Where it does they hand over
lists, `{"type": "text", "text": ...}` each, else one text. The answer has to be theirs, for a
template may print the two differently.
"""

from collections.abc import Iterator

from jinja2 import nodes

CONTENT = "content"


def loops_over_content(template: nodes.Template) -> bool:
    """Whether the template goes through the parts of a message's content."""
    messages = _aliases(template, "messages")
    one = {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _name(_peeled(loop.iter)) in messages
    }
    macros = list(template.find_all(nodes.Macro))
    inside = {id(loop): macro for macro in macros for loop in macro.find_all(nodes.For)}
    given = {id(macro): _parameters_with_content(template, macro, one) for macro in macros}
    for loop in template.find_all(nodes.For):
        macro = inside.get(id(loop))
        of = _peeled(loop.iter)
        if _is_content(of, one):
            return isinstance(loop.target, nodes.Name)
        name = _name(loop.iter)
        if name is None:
            continue
        if macro is None and name == CONTENT:
            return isinstance(loop.target, nodes.Name)
        if macro is not None and name in given[id(macro)]:
            return isinstance(loop.target, nodes.Name)
    return False


def _aliases(template: nodes.Template, name: str) -> set[str]:
    """`name`, and what is assigned from it, whole or in part."""
    known = {name}
    assigned = [
        (one.target.name, _name(_peeled(one.node)))
        for one in template.find_all(nodes.Assign)
        if isinstance(one.target, nodes.Name)
    ]
    for _ in assigned:
        more = {target for target, source in assigned if source in known} - known
        if not more:
            break
        known |= more
    return known


def _parameters_with_content(
    template: nodes.Template, macro: nodes.Macro, messages: set[str]
) -> set[str]:
    """Parameters of a macro that somewhere get the content of a message."""
    parameters = [argument.name for argument in macro.args]
    return {
        name
        for call in template.find_all(nodes.Call)
        if _name(call.node) == macro.name
        for name, value in _arguments(call, parameters)
        if _is_content(_peeled(value), messages)
    }


def _arguments(call: nodes.Call, parameters: list[str]) -> Iterator[tuple[str, nodes.Node]]:
    yield from zip(parameters, call.args, strict=False)
    for keyword in call.kwargs:
        if isinstance(keyword, nodes.Keyword) and keyword.key in parameters:
            yield keyword.key, keyword.value


def _peeled(node: nodes.Node) -> nodes.Node:
    """Without filters, tests and slices around it."""
    while True:
        inner: nodes.Node | None = None
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            inner = node.node
        if inner is None:
            return node
        node = inner


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == CONTENT and _name(node.node) in messages
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value == CONTENT and _name(node.node) in messages
    return False


def _name(node: nodes.Node) -> str | None:
    return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else None
