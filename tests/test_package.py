"""What a wheel holds."""

import shutil
import zipfile

import pytest

from helpers import ROOT, run_process


BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"


@pytest.mark.slow
def test_wheel_has_every_file_of_the_packages_and_runs(tmp_path):
    """It is built without the network, from a copy, as a build leaves directories behind."""
    pytest.importorskip("setuptools", minversion="77")
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    places = {path.name: path.name for path in ROOT.glob("scratch_bert*") if path.suffix != ".egg-info"}
    places |= {"recipes": "scratch_bert_cli/recipes"}
    files = set()
    for place, packaged in places.items():
        shutil.copytree(ROOT / place, source / place, ignore=shutil.ignore_patterns("__pycache__"))
        files |= {f"{packaged}/{p.relative_to(source / place).as_posix()}" for p in (source / place).rglob("*.*")}
    wheel = source / run_process("-c", BUILD, cwd=source).stdout.split()[-1]
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == files
        archive.extractall(installed)
    code = "import scratch_bert_cli.main as command; print(command.__file__); command.main()"
    run = run_process("-c", code, "pretrain", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert run.stdout.startswith(str(installed)) and "usage: scratch-bert pretrain " in run.stdout
