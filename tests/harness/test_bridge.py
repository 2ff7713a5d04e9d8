"""The start-up bridge, against a small lm_eval of the tests' own.

Every test runs a fresh interpreter without site (``-S``), so that the environment's
own installation stays out, and lets ``site.addsitedir`` run our ``.pth``.
"""

import ast
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest

PROJECT = Path(__file__).parents[2]
HARNESS = PROJECT / "lm_latent_eval" / "harness"
PTH = HARNESS / "bridge.pth"
THEIRS = Path(metadata.distribution("lm-eval").locate_file("lm_eval/api/registry.py"))
"""The registry of the lm-eval that is installed, which imports nothing else of it."""

REGISTRY = """
class Registry(dict):
    def register(self, alias, target):
        assert alias not in self, f"{alias} replaced"
        self[alias] = target

model_registry = Registry()
"""
TASKS = """
class TaskManager:
    def __init__(self, include_path=None, include_defaults=True, metadata=None):
        self.include_path = include_path
"""
MODELS = """
from lm_eval.api.registry import model_registry
model_registry.register("hf", target="lm_eval.models.huggingface:HFLM")
"""
OURS = {
    "latent_one": "lm_latent_eval.harness.backends:One",
    "latent_two": "lm_latent_eval.harness.backends:Two",
}
INFO = "lm_latent_eval-0.0.0.dist-info"
BUILT_IN = {"hf": "lm_eval.models.huggingface:HFLM"}


class Site:
    """A site directory with a small lm_eval, our package's metadata and our .pth."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("lm_eval/__init__.py", "")
        self.write("lm_eval/api/__init__.py", "")
        self.write("lm_eval/api/registry.py", REGISTRY)
        self.write("lm_eval/models/__init__.py", MODELS)
        self.write("lm_eval/tasks/__init__.py", TASKS)
        self.declare("lm-latent-eval", INFO, OURS)
        for kind in ("pth", "py"):
            text = (HARNESS / f"bridge.{kind}").read_text()
            self.write(f"lm_latent_eval_bridge.{kind}", text)
        for folder in ("lm_latent_eval", "tasks"):
            (root / folder).symlink_to(PROJECT / folder)

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def declare(self, name: str, info: str, models: dict[str, str]) -> None:
        """Write the metadata of a package that has models."""
        lines = [f"{model} = {target}" for model, target in models.items()]
        lines += ["[lm_eval.tasks]", "ours = lm_latent_eval:task_path"]
        self.write(f"{info}/METADATA", f"Name: {name}\nVersion: 0.0.0\n")
        self.write(f"{info}/entry_points.txt", "\n".join(["[lm_eval.models]", *lines]))

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run code in a fresh interpreter that has this directory as its site."""
        start = f"""
import site, sys
before = {{*sys.modules}}
site.addsitedir({str(self.root)!r})
"""
        return subprocess.run(
            [sys.executable, "-S", "-W", "error", "-c", start + dedent(code)],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            cwd=self.root,
        )

    def check(self, code: str, **environment: str) -> str:
        """Run code, which must end well and in silence; return what it printed."""
        done = self.run(code, **environment)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def registered(self, **environment: str) -> dict[str, str]:
        """Return what is registered after a plain import, which must be silent."""
        return ast.literal_eval(self.check(PRINT_REGISTRY, **environment))


PRINT_REGISTRY = """
import lm_eval.models
from lm_eval.api.registry import model_registry
print(dict(model_registry))
"""


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_our_entry_points_are_registered_as_strings(site):
    assert site.registered() == BUILT_IN | OURS
    site.write("second_bridge.pth", PTH.read_text())  # two installations are one
    assert site.registered() == BUILT_IN | OURS


@pytest.mark.parametrize(
    ("value", "off"), [("1", True), ("yes", True), ("", False), ("0", False)]
)
def test_the_switch_turns_it_off(site, value, off):
    expected = BUILT_IN if off else BUILT_IN | OURS
    assert site.registered(LM_LATENT_EVAL_NO_BRIDGE=value) == expected


def test_what_others_register_is_left_alone(site):
    """A registry that finds plug-ins itself, a taken name, and names of others."""
    taken = "model_registry.register('latent_one', target='theirs:One')\n"
    site.write("lm_eval/models/__init__.py", MODELS + taken)
    assert site.registered() == BUILT_IN | OURS | {"latent_one": "theirs:One"}
    site.write("lm_eval/models/__init__.py", MODELS)
    theirs = {"their_model": "their_lm.models:Model", "hf": "their_lm.models:HF"}
    site.declare("their-lm", "their_lm-1.0.dist-info", theirs)
    # What lm-eval has itself is not replaced.
    assert site.registered() == theirs | OURS | BUILT_IN
    site.write("lm_eval/api/registry.py", REGISTRY + "def load_plugins(): ...\n")
    assert site.registered() == BUILT_IN


def test_starting_python_imports_the_bridge_alone(site):
    # Python 3.13 reads every .pth by an encoding of its own.
    its_own = {"lm_latent_eval_bridge", "encodings.utf_8_sig"}
    code = f"""
        new = {{*sys.modules}} - before; assert new <= {its_own}, new
        before = {{*sys.modules}}
        import lm_latent_eval, lm_latent_eval.harness
        new = {{*sys.modules}} - before
        assert all(name.startswith("lm_latent_eval") for name in new), new
    """
    site.check(code)


REGISTERED = """
from lm_eval.api.registry import model_registry
assert {"hf", "latent_one"} <= {*model_registry}
"""
TRACER = """
import importlib.util

class Tracer:  # asks everyone else, as tracing libraries do
    busy = False

    def find_spec(self, name, path=None, target=None):
        if self.busy or name != "lm_eval.models":
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False

sys.meta_path.insert(POSITION, Tracer())
import lm_eval.models
"""
IMPORTS = {
    "a backend": "import lm_eval.models.huggingface",
    "no trace is left": """
bridge = sys.meta_path[0]
assert bridge.__name__ == "lm_latent_eval_bridge"
import lm_eval.models
assert bridge in sys.meta_path, "it waits for tasks"
import lm_eval.tasks
assert bridge not in sys.meta_path
from importlib.machinery import SourceFileLoader
assert type(lm_eval.models.__loader__) is SourceFileLoader
assert lm_eval.models.__spec__.loader is lm_eval.models.__loader__
""",
    "an import that failed is repeated": """
sys.fails = True
try:
    import lm_eval.models
except ZeroDivisionError:
    sys.fails = False
import lm_eval.models
assert not sys.fails, "premise: the first import failed"
""",
    "an interrupt is not held up": """
import importlib.metadata
from importlib.metadata import entry_points

def interrupted(**kinds):
    importlib.metadata.entry_points = entry_points
    raise KeyboardInterrupt

importlib.metadata.entry_points = interrupted
try:
    import lm_eval.models
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("the interrupt was swallowed")
from lm_eval.api.registry import model_registry
assert "latent_one" not in model_registry, "premise"
model_registry.clear()
import lm_eval.models
""",
    "another hook before it": TRACER.replace("POSITION", "0"),
    "another hook after it": TRACER.replace("POSITION", "1"),
}


@pytest.mark.parametrize("code", IMPORTS.values(), ids=IMPORTS)
def test_any_way_to_import_registers(site, code):
    fails = "import sys\nif getattr(sys, 'fails', False): 1 / 0\n"
    site.write("lm_eval/models/__init__.py", fails + MODELS)
    site.write("lm_eval/models/huggingface.py", "")
    site.check(code + REGISTERED)


OFFERED = f"""
from pathlib import Path
from lm_eval.tasks import TaskManager
ours, other = {str(PROJECT / "tasks")!r}, "elsewhere"
assert TaskManager().include_path == [ours]
assert TaskManager(other, metadata={{}}).include_path == [ours, other]
assert TaskManager([other, Path(ours)]).include_path == [other, Path(ours)]
assert TaskManager(include_defaults=False).include_path is None
"""


def test_our_tasks_are_indexed_beside_those_of_lm_eval(site):
    site.check(OFFERED)
    without = "from lm_eval.tasks import TaskManager; print(TaskManager().include_path)"
    assert site.check(without, LM_LATENT_EVAL_NO_BRIDGE="1") == "None\n"


def test_without_our_package_lm_eval_has_its_own_tasks(site):
    (site.root / "lm_latent_eval").unlink()
    site.check(
        "from lm_eval.tasks import TaskManager; assert not TaskManager().include_path"
    )
    site.write("lm_eval/tasks/__init__.py", "class TaskManager: ...\n")
    site.check("from lm_eval.tasks import TaskManager; TaskManager()")


def test_without_lm_eval_the_error_is_pythons_own(site):
    (site.root / "lm_eval").rename(site.root / "elsewhere")
    done = site.run("import lm_eval.models")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'lm_eval'" in done.stderr
    assert "lm_latent_eval" not in done.stderr


def refused(site: Site, name: str = "latent_one") -> str:
    """Return the last line of what asking for a backend ends in."""
    site.write("lm_eval/api/registry.py", THEIRS.read_text())
    done = site.run(f"""
        import lm_eval.models
        from lm_eval.api.registry import get_model, model_registry
        assert "hf" in model_registry
        get_model({name!r})
    """)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("gone", "instead", "error"),
    [
        (INFO, None, "No package metadata was found for lm-latent-eval"),
        ("lm_latent_eval", None, "No module named 'lm_latent_eval'"),
        ("lm_latent_eval", "harness/empty", "No module named .*harness.backends'"),
        ("lm_latent_eval", "__init__.py", "ZeroDivisionError: division by zero"),
    ],
    ids=["without metadata", "gone", "half removed", "broken"],
)
def test_the_error_for_a_model_says_why(site, gone, instead, error):
    (site.root / gone).rename(site.root / "gone")
    if instead:
        site.write(f"lm_latent_eval/{instead}", "1 / 0")
    assert site.registered() == (BUILT_IN if gone == INFO else BUILT_IN | OURS)
    said = refused(site)
    assert re.search(error, said)
    if gone == INFO:  # then it is lm-eval's own error, and says what to do
        assert said.startswith("ValueError: Attempted to load model 'latent_one'")
        assert "Reinstall lm-latent-eval, or set LM_LATENT_EVAL_NO_BRIDGE=1" in said


def test_an_error_of_a_known_model_stays_its_own(site):
    fails = MODELS + "model_registry.register('odd', target='odd')\n"
    site.write("lm_eval/models/__init__.py", fails + "model_registry.register = None\n")
    expected = "ValueError: Invalid lazy path 'odd', expected 'module:object'"
    assert refused(site, "odd") == expected


def test_the_pth_is_one_short_ascii_line():
    assert PTH.read_bytes() == b"import lm_latent_eval_bridge\n"


@pytest.mark.parametrize("code", ["", "1 / 0", "def", "raise SystemError"])
def test_a_bridge_that_is_broken_or_gone_lets_python_start(site, code):
    bridge = site.root / "lm_latent_eval_bridge.py"
    bridge.write_text(code) if code else bridge.unlink()
    done = site.run(PRINT_REGISTRY)
    assert done.returncode == 0
    assert ast.literal_eval(done.stdout) == BUILT_IN
    assert "lm_latent_eval_bridge.pth" in done.stderr, "site names the line"


@pytest.mark.parametrize("place", [0, 6, 7, -1])
def test_a_damaged_line_lets_python_start(site, place):
    """A letter of the statement, the space, the name or the end is another one."""
    line = bytearray(PTH.read_bytes())
    line[place] ^= 1
    (site.root / "lm_latent_eval_bridge.pth").write_bytes(line)
    done = site.run(PRINT_REGISTRY)
    assert done.returncode == 0
    assert ast.literal_eval(done.stdout).items() >= BUILT_IN.items()


def test_a_registry_without_models_does_not_stop_lm_eval(site):
    site.write("lm_eval/api/registry.py", "")
    site.write("lm_eval/models/__init__.py", "")
    site.check("import lm_eval.models")


@pytest.mark.parametrize(
    "error", ["SystemExit(3)", "MemoryError", "RecursionError", "TypeError('x')"]
)
def test_what_ends_in_the_bridge_does_not_end_the_import(site, error):
    refuses = MODELS + dedent(f"""
        def refuse(name, target):
            raise {error}
        model_registry.register = refuse
    """)
    site.write("lm_eval/models/__init__.py", refuses)
    assert site.registered() == BUILT_IN
    assert error.partition("(")[0] in refused(site)
