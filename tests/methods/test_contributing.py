"""The methods printed in docs/writing-a-method.md, pasted into files as they stand, pass the checks of every method."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cretta
import forks
import textbook
from processes import ENVIRONMENT

ROOT = Path(__file__).parent.parent.parent
PLUGIN = """
from pathlib import Path
from types import ModuleType

import cretta.methods

cretta.methods.__path__.append(str(Path(__file__).parent / "methods"))
"""


def examples() -> dict[str, str]:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "writing-a-method.md").read_text(), flags=re.DOTALL)
    return {re.findall(r'name = "(\w+)"', block)[0]: block for block in code}


@pytest.mark.process
@pytest.mark.slow
def test_the_examples_pass_the_checks_of_every_method(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    for name, code in examples().items():
        assert len(code.splitlines()) < 60
        (tmp_path / "methods" / f"{name}.py").write_text(code)
    (tmp_path / "contributed.py").write_text(PLUGIN)
    path = ":".join([str(tmp_path), str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "methods")])
    names = " or ".join(examples())
    arguments = ["-p", "contributed", "-p", "no:cacheprovider", "-q", "-k", names, "tests/methods/test_all.py"]
    pytest_there = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    # Plugins that are installed, and not used, start slowly.
    environment = ENVIRONMENT | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = forks.run([sys.executable, "-c", pytest_there, *arguments], env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    per_method = len(re.findall(r'parametrize\("name", ', Path(ROOT / "tests/methods/test_all.py").read_text()))
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= len(examples()) * per_method


def test_the_examples_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(examples()) == {"energy_descent", "anchored_entropy"}
    buffer = cretta.SourceBuffer(textbook.source_images(20), augment="none")
    (x,) = textbook.batches((8,))
    for name, code in examples().items():
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(code, vars(module))
        values = vars(module).values()
        (method,) = [v for v in values if isinstance(v, type) and issubclass(v, cretta.Adapter) and v.name]
        model = cretta.adapt(textbook.small_net(), method, buffer=buffer, lr=1e-2)
        losses = []
        for _ in range(5):
            model(x)
            assert model.last.adapted
            losses.append(model.last.loss or 0.0)
        assert losses[-1] < losses[0]
