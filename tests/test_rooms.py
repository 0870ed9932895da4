"""The house: a room imports from those below it; the paper's room is small, and what trains."""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from numpy.testing import assert_array_equal

import numformer
from numformer import paper
from tests import paper_room

ROOT = Path(__file__).parents[1]
# From the ground up; what stands side by side does not import each other.
FLOORS = [
    ["version", "counts", "errors", "blas", "symbols", "allocator", "former_modules", "parallel"],
    ["backend", "settings", "devices", "progress"],
    ["randomness", "layer", "arithmetic"],
    ["paper", "half_precision", "interception"],
    ["later", "data", "kernels"],
    ["recurrence"],
    ["plots", "models", "layers"],
    ["optimization"],
    ["runs", "execution", "formulas"],
    ["training", "generation"],
    ["published"],
    ["trained", "exit_codes", "former_names"],
    ["gradient_check", "convert", "sizes"],
    ["__main__"],
    ["numformer"],  # the public names
    ["toy_tasks"],
    ["lessons"],
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = [p for p in sorted(ROOT.glob("*/**/*.py")) if p.relative_to(ROOT).parts[0] in FLOOR]


def room_of(parts: tuple[str, ...]) -> str:
    """A module's or a path's room: numformer.layers.linear stands in `layers`."""
    if parts[0] != "numformer" or len(parts) == 1 or parts[1] == "__init__":
        return parts[0]
    return parts[1]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a node, without its expressions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def imported(path: Path) -> set[tuple[str, str]]:
    """The rooms that a file imports from, and the modules by which it does."""
    modules = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= names if node.module == "numformer" else {node.module}
    modules = {tuple(m.split(".")) for m in modules if m.split(".")[0] in FLOOR}
    return {(room, ".".join(m)) for m in modules if (room := room_of(m)) in FLOOR}


def test_a_file_imports_only_from_rooms_below_its_own():
    rooms = {path: room_of(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    wrong_imports = [
        f"{path.relative_to(ROOT)} imports {module}, which is above"
        for path, own in rooms.items()
        for room, module in imported(path)
        if room != own and FLOOR[room] >= FLOOR[own]
    ]
    assert rooms and not wrong_imports


def test_the_paper_and_what_it_stands_on_are_28_files_of_3000_lines():
    lines = paper_room.lines()
    room = sum(count for name, count in lines.items() if name.startswith("numformer.paper"))
    assert len(lines) <= 28 and sum(lines.values()) <= 3000 and room <= 2200


def test_a_default_model_is_made_of_the_paper_s_classes_alone():
    """And the model itself has the forward, the backward and the writing of the paper's class."""
    model = numformer.Transformer(numformer.Config.base(11, d_model=8, d_ff=8, heads=2, layers=2))
    rooms = {type(layer).__module__ for layer in model.layers_within() if layer is not model}
    assert rooms and all(name.startswith("numformer.paper.") for name in rooms), rooms
    for name in ("forward", "backward", "start", "step"):
        assert getattr(numformer.Transformer, name) is getattr(paper.Transformer, name)
    alone = paper.Transformer(paper.Config.base(11, d_model=8, d_ff=8, heads=2, layers=2))
    for name, value in model.state_dict().items():
        assert_array_equal(value, alone.state_dict()[name])


def test_a_training_step_reaches_the_product_with_the_queries_weight_in_11_frames(monkeypatch):
    """From `Trainer.advance` to the `@` with W^Q of the first encoder layer."""
    assert paper_room.frames_to_query_product() <= 11


CHANGING = {"State", "States", "Texts", "Case", "InputGenerator", "Probe"}
"""The dataclasses whose objects change: states of a text that is being written, and cases."""


def test_other_dataclasses_are_frozen_and_configs_take_only_keywords():
    modules = [module for name, module in [*sys.modules.items()] if name.startswith("numformer.")]
    values = (value for module in modules for value in vars(module).values())
    classes = {v for v in values if isinstance(v, type) and "__dataclass_params__" in vars(v)}
    changing = {kind.__name__ for kind in classes if not kind.__dataclass_params__.frozen}
    assert len(classes) > 40 and changing <= CHANGING
    for config in (kind for kind in classes if kind.__name__ == "Config"):
        parameters = inspect.signature(config).parameters.values()
        assert all(each.kind is each.KEYWORD_ONLY for each in parameters), config
