from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import cretta
import forks
import textbook
from cretta.errors import OptionError
from cretta.methods.tent import Tent
from processes import LONG

BUILT_IN = ["bn_adapt", "cretta", "source", "tent"]


def test_names_hold_the_built_in_methods() -> None:
    names = cretta.methods.names()
    assert set(BUILT_IN) <= set(names)
    assert len(names) == len(set(names))
    own = [name for name in names if cretta.methods.get(name).__module__.startswith("cretta.")]
    assert own == sorted(own)
    assert names[: len(own)] == own


def test_every_name_gives_a_class_of_that_name() -> None:
    for name in cretta.methods.names():
        method = cretta.methods.get(name)
        assert issubclass(method, cretta.Adapter)
        assert method.name == name
        assert method.facts.logits in ("before", "after")
        assert method.__doc__


def test_get_by_name() -> None:
    assert cretta.methods.get("tent") is Tent
    assert cretta.methods.get("cretta") is cretta.CreTTA


@pytest.mark.parametrize("given", ["tnt", "TENT", "", "nonsense"])
def test_an_unknown_method_names_the_known_ones(given: str) -> None:
    with pytest.raises(OptionError) as caught:
        cretta.adapt(textbook.small_net(), given)
    message = str(caught.value)
    assert f"unknown method {given!r}" in message
    assert all(name in message for name in BUILT_IN)
    if given == "tnt":
        assert "Did you mean 'tent'?" in message


def test_two_methods_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = type("Twin", (Tent,), {"__module__": Tent.__module__})
    monkeypatch.setattr("cretta.methods.tent.Twin", twin, raising=False)
    with pytest.raises(OptionError, match=r"tent\.Tent and cretta\.methods\.tent\.Twin both have the name 'tent'"):
        cretta.methods.built_in.__wrapped__()


def test_the_default_method_is_the_papers() -> None:
    buffer = cretta.SourceBuffer(textbook.source_images(4), augment="none")
    assert type(cretta.adapt(textbook.small_net(), buffer=buffer)) is cretta.CreTTA


def test_the_list_cannot_be_spoilt_by_its_reader() -> None:
    cretta.methods.names().clear()
    assert set(BUILT_IN) <= set(cretta.methods.names())


# Methods of others, in a package that is really installed.

PLUGIN = '''
"""A third party's method."""

import dataclasses

import cretta
from cretta.options import number


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalmOptions(cretta.Options):
    """Its own option."""

    strength: float = number(1.0, "how strongly", above=0)


class Calm(cretta.Adapter[CalmOptions]):
    """Descends the energy."""

    name = "calm"
    facts = cretta.Facts(updates="norm affine", statistics="batch", logits="after")
    presets = {"strong": {"strength": 5.0}}

    def objective(self, x):
        logits = self.model(x)
        return cretta.Objective(loss=self.options.strength * cretta.energy(logits).mean(), logits=logits)


class Thief(Calm):
    name = "tent"


def not_a_class():
    return None
'''

ENTRY_POINTS = """
[cretta.methods]
calm = calm_plugin:Calm
tent = calm_plugin:Thief
absent = calm_plugin:Absent
broken = broken_plugin:Broken
function = calm_plugin:not_a_class
foreign = collections:OrderedDict
"""

USES = """
import json, sys
import torch
import cretta
from cretta.errors import OptionError
import textbook

told = {"names": cretta.methods.names(), "errors": {}}
net, x = textbook.small_net(), textbook.batches((8,))[0]
model = cretta.adapt(net, "calm", preset="strong", lr=1e-2)
before = model.predict(x)
after = model(x)
told["class"] = type(model).__module__ + "." + type(model).__qualname__
told["strength"] = model.options.strength
told["adapted"] = model.last.adapted
told["gain"] = float(cretta.energy(before).mean() - cretta.energy(after).mean())
model.save(sys.argv[1])
model.reset()
model.restore(sys.argv[1])
told["restored"] = bool(torch.equal(model.predict(x), after))
told["tent"] = cretta.methods.get("tent").__module__
for name in ("absent", "broken", "function", "foreign"):
    try:
        cretta.adapt(net, name)
    except OptionError as error:
        told["errors"][name] = str(error)
try:
    cretta.adapt(net, "calm", strength=-1)
except OptionError as error:
    told["errors"]["calm"] = str(error)
print(json.dumps(told))
"""


def wheel(folder: Path) -> Path:
    """A wheel made by hand: a build backend may not be there, and need not."""
    info = "calm_plugin-1.0.dist-info"
    content = {
        "calm_plugin.py": PLUGIN,
        "broken_plugin.py": "import a_package_that_nobody_has\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: calm-plugin\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRY_POINTS,
    }
    lines = []
    for name, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text.encode())}")
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    path = folder / "calm_plugin-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a process says that runs with the package installed."""
    folder = tmp_path_factory.mktemp("plugin")
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    install = [*pip, "--target", str(site), str(wheel(folder))]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=LONG, check=False)
    assert installed.returncode == 0, installed.stderr
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join([str(site), tests, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", USES, folder / "state.safetensors"]
    done = forks.run(command, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.process
def test_an_installed_method_is_found_and_works(told: dict[str, object]) -> None:
    names = told["names"]
    assert isinstance(names, list)
    assert "calm" in names
    assert told["class"] == "calm_plugin.Calm"
    assert told["strength"] == 5.0
    assert told["adapted"] is True
    assert isinstance(told["gain"], float)
    assert told["gain"] > 0
    assert told["restored"] is True


@pytest.mark.process
def test_own_methods_come_first_and_once(told: dict[str, object]) -> None:
    names = told["names"]
    assert isinstance(names, list)
    assert names.count("tent") == 1
    others = ["absent", "broken", "calm", "foreign", "function"]
    assert names[-len(others) :] == others
    assert set(BUILT_IN) <= set(names[: -len(others)])


@pytest.mark.process
def test_a_built_in_name_cannot_be_taken_over(told: dict[str, object]) -> None:
    assert told["tent"] == "cretta.methods.tent"


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("absent", ["calm_plugin:Absent", "cannot be loaded", "Absent"]),
        ("broken", ["broken_plugin:Broken", "cannot be loaded", "a_package_that_nobody_has"]),
        ("function", ["calm_plugin:not_a_class", "not a cretta.Adapter"]),
        ("foreign", ["collections:OrderedDict", "not a cretta.Adapter"]),
        ("calm", ["strength=-1", "above 0"]),
    ],
)
def test_a_broken_method_says_what_is_wrong(told: dict[str, object], name: str, parts: list[str]) -> None:
    errors = told["errors"]
    assert isinstance(errors, dict)
    for part in parts:
        assert part in errors[name]


def test_plugins_do_not_reach_this_process() -> None:
    assert "calm" not in cretta.methods.names()
    assert torch.is_grad_enabled()
