"""Every way to break one place of a source file: the mutants of `tests.mutation`.

An operator takes a node of the syntax tree and yields nodes to replace it. Its name is the kind of
the mistake. Its docstring shows code before and after; the first example is tested.
"""

import ast
import contextlib
import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

MODULES = {"np", "xp", "math", "os", "sys", "np.random"}
# Nodes that no operator changes.
LEAVES = ast.Name, ast.arg, ast.operator, ast.cmpop, ast.unaryop, ast.boolop
# Attributes of nodes: in a backward, in any function, an expression statement, reshape's -1.
IN_BACKWARD, FUNCTION, STATEMENT = "in_backward", "in_function", "is_statement"
IN_RESHAPE = "in_reshape"


def parsed(expression: str, **parts: ast.AST) -> ast.AST:
    """The tree of an expression in which each name of `parts` stands for another tree."""

    class Insert(ast.NodeTransformer):
        def visit_Name(self, node):
            return copy.deepcopy(parts.get(node.id, node))

    return Insert().visit(ast.parse(expression, mode="eval").body)


def function_name(node: ast.AST) -> str:
    """The last name of a call's function, such as "sum" of x.sum(); "" for other nodes."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


BOTH_WAYS = """Add Sub, Mult Div, BitAnd BitOr, RShift LShift, Lt LtE, Gt GtE, Eq NotEq, Is IsNot,
               In NotIn, And Or"""
ONE_WAY = "FloorDiv Mult, Mod FloorDiv, Pow Mult, MatMult Mult, BitXor BitOr"
PAIRS = [tuple(getattr(ast, n) for n in p.split()) for p in f"{BOTH_WAYS}, {ONE_WAY}".split(",")]
OTHER = {right: left for left, right in PAIRS[:10]} | dict(PAIRS)


class Operators:
    """The operators; the class only groups them."""

    def other_operator(node):
        """a + b -> a - b; a *= b -> a /= b; a <= b -> a < b; a and b -> a or b; and so on."""
        if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
            changed = copy.copy(node)
            changed.op = OTHER[type(node.op)]()
            yield changed
        if isinstance(node, ast.Compare):
            for place, op in enumerate(node.ops):
                changed = copy.copy(node)
                changed.ops = [*node.ops]
                changed.ops[place] = OTHER[type(op)]()
                yield changed

    def missing_term(node):
        """a + b -> a; a * b -> b; a and b -> a; a term, factor or condition is forgotten."""
        if isinstance(node, ast.BinOp):
            yield node.left
            yield node.right
        if isinstance(node, ast.BoolOp):
            for place in range(len(node.values)):
                others = [*node.values[:place], *node.values[place + 1 :]]
                yield others[0] if len(others) == 1 else ast.BoolOp(node.op, others)

    def swapped_operands(node):
        """a - b -> b - a; a / b -> b / a; a @ b -> b @ a; matmul(a, b) -> matmul(b, a)."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.MatMult):
            yield ast.BinOp(node.right, node.op, node.left)
        if function_name(node) == "matmul":
            yield ast.Call(node.func, node.args[::-1], node.keywords)

    def missing_sign(node):
        """-a -> a; not a -> a; ~a -> a."""
        if isinstance(node, ast.UnaryOp):
            yield node.operand

    def epsilon_outside_the_root(node):
        """sqrt(a + b) -> sqrt(a) + b."""
        if function_name(node).endswith("sqrt"):
            (inside,) = [arg for arg in node.args[:1] if isinstance(arg, ast.BinOp)] or [None]
            if inside and isinstance(inside.op, ast.Add):
                yield ast.BinOp(ast.Call(node.func, [inside.left], []), ast.Add(), inside.right)

    def other_constant(node):
        """0.5 -> 1.0; n -> n + 1; True -> False."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield ast.Constant(not node.value)
            elif isinstance(node.value, int) and not getattr(node, IN_RESHAPE, False):
                yield ast.Constant(node.value + 1)  # to reshape every negative size means the same
            elif isinstance(node.value, float):
                yield ast.Constant(2 * node.value or 1.0)

    def missing_statement(node):
        """a += b -> nothing; a statement never runs. Names that it assigns stay local."""
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Raise | ast.Break):
            yield ast.If(ast.Constant(False), [node], [])

    def missing_with(node):
        """with a: b -> its body."""
        if isinstance(node, ast.With):
            names = [item.optional_vars for item in node.items if item.optional_vars]
            if not names:
                yield ast.If(ast.Constant(True), node.body, [])

    def other_branch(node):
        """b if a else c -> c; if a -> if not a."""
        if isinstance(node, ast.If | ast.While):
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield changed
        if isinstance(node, ast.IfExp):
            yield node.body
            yield node.orelse

    def set_for_added(node):
        """a.b += c -> a.b[...] = c; the gradients of other uses are lost."""
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            target = node.target
            if isinstance(target, ast.Attribute):
                array = parsed("target[...]", target=target)
                array.value.ctx, array.ctx = ast.Load(), ast.Store()
                target = array
            yield ast.Assign([target], node.value)

    def divided_by_the_batch(node):
        """return dx -> return (lambda g: g / len(g))(dx); w.grad += dw alike, in a backward."""
        if not getattr(node, IN_BACKWARD, False):
            return

        def divided(value):
            return parsed("(lambda g: g / len(g))(value)", value=value)

        if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for place, value in enumerate(values):
                others = [*values[:place], divided(value), *values[place + 1 :]]
                yield ast.Return(others[0] if len(others) == 1 else ast.Tuple(others, ast.Load()))
        if isinstance(node, ast.AugAssign):
            yield ast.AugAssign(node.target, node.op, divided(node.value))

    def swapped_gradients(node):
        """return a, b -> return (b, a); a, b = c -> b, a = c."""
        if isinstance(node, ast.Return | ast.Assign) and getattr(node, FUNCTION, ""):
            pair = node.value if isinstance(node, ast.Return) else node.targets[0]
            if isinstance(pair, ast.Tuple) and not any(
                isinstance(e, ast.Starred) for e in pair.elts
            ):
                for place in range(len(pair.elts) - 1):
                    changed, others = copy.copy(node), [*pair.elts]
                    others[place : place + 2] = others[place + 1], others[place]
                    if isinstance(node, ast.Return):
                        changed.value = ast.Tuple(others, pair.ctx)
                    else:
                        changed.targets = [ast.Tuple(others, pair.ctx), *node.targets[1:]]
                    yield changed

    def stale_saved_value(node):
        """self.pop_saved() -> self.saved.pop(0); the oldest record, not the latest."""
        if function_name(node) == "pop_saved" and ast.unparse(node) == "self.pop_saved()":
            yield parsed("self.saved.pop(0)")

    def dropout_scale_missing(node):
        """x * keep -> x * (keep != 0)."""
        if isinstance(node, ast.BinOp) and ast.unparse(node).endswith("* keep"):
            yield parsed("x * (keep != 0)", x=node.left)

    def mask_off_by_one(node):
        """keys <= queries -> keys <= queries + 1; keys <= queries - 1."""
        if isinstance(node, ast.Compare) and ast.unparse(node).startswith("keys <= queries"):
            for step in (1, -1):
                shifted = ast.BinOp(node.comparators[0], ast.Add(), ast.Constant(step))
                yield ast.Compare(node.left, node.ops, [shifted])

    def mask_on_the_query_axis(node):
        """m[:, None, None, :] -> m[:, None, :, None]."""
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "(:, None, None, :)":
            yield parsed("mask[:, None, :, None]", mask=node.value)

    def wrong_axis(node):
        """f(axis=-1) -> axis=0; any other axis -> axis=-1."""
        if isinstance(node, ast.keyword) and node.arg == "axis":
            yield ast.keyword("axis", ast.Constant(0 if ast.unparse(node.value) == "-1" else -1))

    def missing_call(node):
        """f(a, b) -> a; a.f(b) -> a; a transpose, a root, a copy, a mask is forgotten."""
        if not isinstance(node, ast.Call) or getattr(node, STATEMENT, False):
            return  # a statement's call is what `missing statement` leaves out
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
        if name.strip("_")[:1].isupper() or name in ("super", "isinstance", "len", "range"):
            return
        is_module_function = (
            not isinstance(function, ast.Attribute) or ast.unparse(function.value) in MODULES
        )
        if not is_module_function:
            yield function.value
        elif node.args and not isinstance(node.args[0], ast.Starred):
            yield node.args[0]

    def missing_transpose(node):
        """a.T -> a."""
        if isinstance(node, ast.Attribute) and node.attr == "T":
            yield node.value

    def missing_argument(node):
        """f(a, b=c) -> f(a); the default instead of the argument."""
        if isinstance(node, ast.Call):
            for place, keyword in enumerate(node.keywords):
                if keyword.arg and keyword.arg != "strict":
                    changed = copy.copy(node)
                    changed.keywords = [*node.keywords[:place], *node.keywords[place + 1 :]]
                    yield changed

    def missing_bound(node):
        """a[b:c] -> :c; also without the upper bound or the step."""
        if isinstance(node, ast.Slice):
            for bound in ("lower", "upper", "step"):
                if getattr(node, bound):
                    changed = copy.copy(node)
                    setattr(changed, bound, None)
                    yield changed


OPERATORS: dict[str, Callable[[ast.AST], Iterator[ast.AST]]] = {
    name.replace("_", " "): mutate
    for name, mutate in vars(Operators).items()
    if not name.startswith("_")
}


@dataclass(frozen=True, eq=False)
class Mutant:
    """One place of a file under numformer/, broken in one way."""

    path: str
    place: str  # the function (with its class) or, where no function is, the class or ""
    kind: str
    change: str
    line: int
    in_function: bool  # else it takes effect when the module is imported: defaults, constants
    whole: ast.AST  # the statement
    statement: str  # its text; only the head of a compound statement
    site: tuple  # the node, its replacement, its parent, and the parent's field and index

    @property
    def function(self) -> str:
        return f"{self.path} {self.place}"

    @property
    def name(self) -> str:
        """The mutant's name, which does not depend on line numbers."""
        return f"{self.function}: {self.kind}: {self.change}"

    @functools.cached_property
    def mutated(self) -> str:
        """The text of the statement in the mutant."""
        with _replaced(*self.site):
            return _text(self.site[1] if self.whole is self.site[0] else self.whole)


class Source:
    """One source file: its mutants, and the code of the file with one of them in place."""

    def __init__(self, path: str, text: str, file: Path):
        self.path, self.file = path, file
        self.tree = ast.parse(text)
        self.mutants: list[Mutant] = []
        numbers, text_of = Counter(), functools.cache(_text)
        for node, parent, field, statement, place, in_function in _nodes(self.tree):
            for kind, mutate in () if isinstance(node, LEAVES) else OPERATORS.items():
                for changed in mutate(node):
                    before, after = text_of(node), _text(changed)
                    if before == after and ast.dump(node) == ast.dump(changed):
                        continue  # a @ a with its operands swapped
                    change = f"{_shortened(before)} -> {_shortened(after)}"
                    numbers[place, kind, change] += 1
                    if (number := numbers[place, kind, change]) > 1:
                        change += f" ({number})"
                    line = getattr(node, "lineno", None) or node.value.lineno
                    texts, site = (statement, text_of(statement)), (node, changed, parent, *field)
                    self.mutants.append(
                        Mutant(path, place, kind, change, line, in_function, *texts, site)
                    )

    def code(self, mutant: Mutant | None = None) -> CodeType:
        """The compiled file, with `mutant` in place."""
        if mutant is None:
            return compile(self.tree, self.file, "exec")
        node, changed, *field = mutant.site
        changed = ast.fix_missing_locations(ast.copy_location(copy.deepcopy(changed), node))
        with _replaced(node, changed, *field):
            return compile(self.tree, self.file, "exec")

    def instrumented_code(self, name: str) -> CodeType:
        """The compiled file, in which each function that runs adds its name to a builtin set."""

        def instrument(node, place, inside):
            for child in ast.iter_child_nodes(node):
                where, function = place, isinstance(child, ast.FunctionDef)
                if (function or isinstance(child, ast.ClassDef)) and not inside:
                    where = f"{place}.{child.name}".lstrip(".")
                instrument(child, where, inside or function)
                record = parsed(f"{name}.add({self.path + ' ' + where!r})")
                if function:
                    child.body.insert(0, ast.Expr(record))
                if isinstance(child, ast.Lambda):
                    child.body = parsed("(record, value)[1]", record=record, value=child.body)

        tree = copy.deepcopy(self.tree)
        instrument(tree, "", False)
        return compile(ast.fix_missing_locations(tree), self.file, "exec")


@contextlib.contextmanager
def _replaced(node: ast.AST, changed: ast.AST, parent: ast.AST, name: str, place: int | None):
    def put(part):
        if place is None:
            setattr(parent, name, part)
        else:
            getattr(parent, name)[place] = part

    put(changed)
    try:
        yield
    finally:
        put(node)


def _text(node: ast.AST) -> str:
    """A node in one line; of a compound statement only the head."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Constant):
        return "its body" if node.test.value else "nothing"
    if isinstance(node, ast.keyword):
        return f"{node.arg}={ast.unparse(node.value)}"
    if hasattr(node, "body") and isinstance(node, ast.stmt):
        node = copy.copy(node)
        node.body, node.orelse = [ast.Expr(ast.Constant(...))], []
    node.lineno = getattr(node, "lineno", 1)  # ast.unparse asks a statement for it
    return " ".join(ast.unparse(node).split())


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _nodes(tree: ast.Module):
    """(node, parent, (field, index), statement, place, in_function) of each node that computes.

    Strings, annotations, `...`, code for type checkers and the inside of a `raise` are left out.
    """

    def walk(node, statement, place, in_function, in_backward):
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params", "ctx"):
                continue
            if _is_for_checkers(node) and name != "orelse":
                continue
            many = isinstance(value, list)
            for index, child in enumerate(value if many else [value]):
                if not isinstance(child, ast.AST):
                    continue
                inside, backward, where = in_function, in_backward, place
                if isinstance(node, ast.FunctionDef) and name == "body" and not in_function:
                    inside, backward = True, "backward" in node.name
                setattr(child, IN_BACKWARD, backward)
                setattr(child, FUNCTION, inside)
                setattr(child, STATEMENT, isinstance(node, ast.Expr))
                if function_name(child) == "reshape":
                    for size in child.args:
                        if isinstance(size, ast.UnaryOp):
                            setattr(size.operand, IN_RESHAPE, True)
                if _is_text(child) or (isinstance(child, ast.Expr) and _is_text(child.value)):
                    continue
                if isinstance(child, ast.keyword) and child.arg == "strict":
                    continue  # zip's own check
                if isinstance(child, ast.Expr) and ast.unparse(child) == "...":
                    continue
                within = child if isinstance(child, ast.stmt) else statement
                if not _is_for_checkers(child):
                    yield child, node, (name, index if many else None), within, where, inside
                if isinstance(child, ast.keyword) and child.arg == "axis":
                    continue  # of a matrix some axes have two numbers; `wrong axis` knows them
                if isinstance(child, ast.Raise | ast.Import | ast.ImportFrom):
                    continue
                if isinstance(child, ast.ClassDef | ast.FunctionDef) and not inside:
                    where = f"{place}.{child.name}".lstrip(".")
                yield from walk(child, within, where, inside, backward)

    yield from walk(tree, tree, "", False, False)


def _is_text(node: ast.AST) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return constant or isinstance(node, ast.JoinedStr)
