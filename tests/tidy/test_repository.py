"""House rules that a machine can check: they keep the tree readable for the next stranger."""

import ast
import re
import subprocess
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BANNED_NAMES = re.compile(r"(Manager|Impl|Helper|Utils?|Base)$")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def python_files(folder: str) -> list[Path]:
    return [path for path in tracked(f"{folder}/**/*.py", f"{folder}/*.py") if not path.name.endswith("_pb2.py")]


def nodes(paths: list[Path], kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield path, node


def test_there_is_something_to_check() -> None:
    assert len(python_files("src")) > 20


def test_a_module_opens_with_its_idea() -> None:
    texts = {path: path.read_text() for path in python_files("src")}
    assert [str(path) for path, text in texts.items() if text and not ast.get_docstring(ast.parse(text))] == []


def test_no_module_imports_itself_through_others() -> None:
    """Behind TYPE_CHECKING and inside functions, too: who reads one of them would have to read them all."""
    modules = {module_name(path): path for path in python_files("src")}
    graph = {name: imported_modules(path) & modules.keys() - {name} for name, path in modules.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> set[str]:
    """Of `from a import b` both `a.b` and, unless that is a module, `a`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            is_module = {name for name in names if (ROOT / "src" / name.replace(".", "/")).with_suffix(".py").is_file()}
            found |= names if is_module == names else names | {str(node.module)}
    return found


def test_names_say_what_a_thing_is() -> None:
    classes = [node.name for _, node in nodes(python_files("src"), ast.ClassDef) if isinstance(node, ast.ClassDef)]
    assert [name for name in classes if BANNED_NAMES.search(name)] == []
    assert [path for path in python_files("src") if path.stem in ("utils", "helpers", "common", "misc")] == []


def test_no_error_is_swallowed_whole() -> None:
    """`except Exception: pass` hides bugs; so does a bare except."""
    found = []
    for path, node in nodes(python_files("src"), ast.ExceptHandler):
        assert isinstance(node, ast.ExceptHandler)
        broad = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        )
        if broad and all(isinstance(statement, ast.Pass) for statement in node.body):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_tests_wait_for_conditions_and_are_never_skipped() -> None:
    """Real time passes in `support/waiting.py` and while servers start; simulations own their time. A skip hides a
    missing part."""
    skips = re.compile(r"pytest\.skip|mark\.skip|mark\.xfail|importorskip")
    sleeps = re.compile(r"time\.sleep\(|asyncio\.sleep\((?!0\))")
    found = []
    for path in python_files("tests"):
        text = path.read_text()
        may_wait = path.name == "waiting.py" or "servers" in path.parts or "quire.testing" in text
        forbidden = [] if path == Path(__file__) else [skips] if may_wait else [skips, sleeps]
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), start=1)
            if any(pattern.search(line) for pattern in forbidden)
        ]
    assert found == []


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked("*.md", "**/*.md"):
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
        broken += [
            f"{path.relative_to(ROOT)} -> {target}"
            for target in targets
            if "://" not in target and not (path.parent / target).exists()
        ]
    assert broken == []


def test_constraints_hold_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.\-]+==[A-Za-z0-9_.\-!+]+", line)] == []


def test_the_project_names_no_place_of_one_machine() -> None:
    """No home folders and no package registries in anything that is committed."""
    forbidden = re.compile(r"/(?:home|root|Users)/\w|pypi\.org|repo1?\.maven|files\.pythonhosted|registry\.npmjs")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path != Path(__file__) and path.suffix != ".png"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if forbidden.search(line)
    ]
    assert found == []


def test_every_error_of_the_source_is_documented() -> None:
    """`docs/reference/errors.md` lists every class of the tree."""
    text = (ROOT / "docs/reference/errors.md").read_text()
    modules = [ast.parse(path.read_text()) for path in (ROOT / "src/quire/errors").glob("*.py")]
    classes = [node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef)]
    assert len(classes) > 50
    missing = [name for name in classes if f"`{name}`" not in text]
    assert missing == []
