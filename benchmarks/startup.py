"""What the bridge to lm-eval adds to every start of Python, and what ``--help`` takes.

    python benchmarks/startup.py --starts 400

Makes a bare environment without the bridge and one with it, starts Python in both by
turns, and prints the mean time of a start, the difference with its standard error,
and what ``-X importtime`` sees. Then the processor time of ``lm-latent-eval --help``
and of a bare start, by turns as well: other work on the machine hardly changes it.
"""

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from statistics import fmean, median, stdev

PROJECT = Path(__file__).parents[1]
PTH = PROJECT / "lm_latent_eval" / "harness" / "bridge.pth"


def make_environment(root: Path, *, bridge: bool) -> Path:
    """Make an environment that can import the package; return its Python."""
    venv.create(root, symlinks=True)
    python = root / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(start(python, "-c", code).stdout.strip())
    (site_packages / "_lm_latent_eval.pth").write_text(f"{PROJECT}\n")
    if bridge:
        for kind in ("pth", "py"):
            source = PTH.with_suffix(f".{kind}")
            shutil.copy(source, site_packages / f"lm_latent_eval_bridge.{kind}")
    return python


def start(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python and wait for it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [python, *arguments], env=kept, check=True, capture_output=True, text=True
    )


def seconds(python: Path) -> float:
    """Return how long one start of Python takes."""
    before = time.perf_counter()
    start(python, "-c", "pass")
    return time.perf_counter() - before


def processor_seconds(*arguments: str) -> float:
    """Return what a run of this Python takes of processors, its threads included."""

    def used() -> float:
        total = resource.getrusage(resource.RUSAGE_CHILDREN)
        return total.ru_utime + total.ru_stime

    before = used()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return used() - before


def importtime(python: Path) -> tuple[int, int]:
    """Return how many modules a start imports, and in how many microseconds."""
    lines = start(python, "-X", "importtime", "-c", "pass").stderr.splitlines()[1:]
    own = [int(line.split(":")[1].split("|")[0]) for line in lines]
    return len(own), sum(own)


def line_microseconds(python: Path, repeats: int = 1000) -> float:
    """Return what the line itself takes inside a running Python."""
    code = f"""
import sys, time
(line,) = [l for l in open({str(PTH)!r}) if l.startswith("import")]
finders, spent = [*sys.meta_path], 0
for _ in range({repeats}):
    sys.meta_path[:] = finders
    sys.modules.pop("lm_latent_eval_bridge", None)
    before = time.perf_counter()
    exec(line)
    spent += time.perf_counter() - before
print(spent / {repeats} * 1e6)
"""
    return float(start(python, "-c", code).stdout)


def processor() -> str:
    """Return the processor's name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def milliseconds(values: list[float]) -> str:
    """Return mean and standard error."""
    error = stdev(values) / len(values) ** 0.5
    return f"{fmean(values) * 1e3:8.3f} ± {error * 1e3:.3f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=400, help="of each kind")
    number = parser.parse_args().starts
    if number < 2:
        parser.error("--starts must be at least 2, for a standard error")

    with tempfile.TemporaryDirectory() as folder:
        without = make_environment(Path(folder, "without"), bridge=False)
        with_bridge = make_environment(Path(folder, "with"), bridge=True)
        for python in (without, with_bridge):
            seconds(python)  # warms the file cache

        # The order alternates (a b, b a, ...), so that a drift of the machine
        # cancels.
        times: dict[Path, list[float]] = {without: [], with_bridge: []}
        order = [without, with_bridge]
        for _ in range(number):
            for python in order:
                times[python].append(seconds(python))
            order.reverse()
        differences = [
            b - a for a, b in zip(times[without], times[with_bridge], strict=True)
        ]
        imports = {python: importtime(python) for python in times}
        line = line_microseconds(with_bridge)
    commands = {
        "python -c pass": ("-c", "pass"),
        "lm-latent-eval --help": ("-m", "lm_latent_eval", "--help"),
        "... estimate --help": ("-m", "lm_latent_eval", "estimate", "--help"),
    }
    helps: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(15):
        for name, arguments in commands.items():
            helps[name].append(processor_seconds(*arguments))

    print(f"hardware  {processor()}, {os.cpu_count()} logical cores")
    print(f"versions  Python {platform.python_version()}, {platform.platform()}")
    print(f"command   python benchmarks/startup.py --starts {number}")
    print("seed      none: nothing is random")
    print()
    print("python -c pass          mean of starts       -X importtime")
    for name, python in (("without", without), ("with", with_bridge)):
        count, total = imports[python]
        print(
            f"  {name:18}{milliseconds(times[python])}   "
            f"{count} modules, {total / 1e3:.2f} ms"
        )
    print(f"  {'difference':18}{milliseconds(differences)}")
    print(f"  {'the line alone':18}{line / 1e3:8.3f} ms")
    print()
    print("processor time          median of 15, least to most")
    for name, took in helps.items():
        least, most = min(took) * 1e3, max(took) * 1e3
        print(f"  {name:32}{median(took) * 1e3:6.0f} ms, {least:.0f} to {most:.0f}")


if __name__ == "__main__":
    main()
