from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import cretta
import forks
import processes
from cretta.cli import app, parse
from cretta.data import embedded
from cretta.errors import OptionError
from processes import ENVIRONMENT, command

COUNT, BATCH, FEW, FEWER = 110, 10, 24, 12
NET = """
import torch
from torch import nn
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 4), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, 8, 3, 2), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 10)
    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.relu(self.bn2(self.conv2(x))).mean((2, 3)))
def make():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()
def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, the same of a few and of fewer by class, a network, and source images for it."""
    root, test = tmp_path_factory.mktemp("home"), embedded("test")
    (root / "photos").mkdir()
    for number in range(COUNT):
        Image.fromarray(test.images[number]).save(root / "photos" / f"{number}.png")
    for folder, count in (("classes", FEW), ("fewer", FEWER)):
        for number in range(count):
            place = root / folder / test.classes[test.labels[number]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(test.images[number]).save(place / f"{number}.png")
    (root / "cli_net.py").write_text(NET)
    source = cretta.SourceBuffer.sample(embedded("train"), size=100)
    source.with_augment("none").save(root / "source.safetensors")
    return root


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def command_line(arguments: tuple[object, ...]) -> list[str]:
    """On the CPU unless told otherwise: numbers are compared to the bit."""
    return ["predict", *map(str, arguments), *([] if "--device" in arguments else ["--device", "cpu"])]


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, command_line(arguments))


def done(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output + result.stderr
    return str(result.output + result.stderr)


def states_in(work: Path) -> int:
    """After how many batches the newest state was kept."""
    return max((int(file.stem.split("-")[1]) for file in work.glob("state-*.safetensors")), default=0)


def stopped_at(
    batches: int, how: signal.Signals, function: str, output: Path, *arguments: object, run: Any = forks.run
) -> str:
    """Run the command in a new process, which stops itself in ``function`` when so many batches are saved.

    ``function`` is called once per batch, before the state after it is saved.
    """
    work = output.with_name(f"{output.name}.work")
    stop = (function, batches - states_in(work) + 1, how)
    line = command(*command_line((*arguments, "--output", output)), stop=stop)
    stopped = run(line, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", "COLUMNS": "80"})
    assert stopped.returncode == (-how if how == signal.SIGKILL else 128 + how), stopped.stderr
    assert not output.exists()
    assert states_in(work) == batches
    return str(stopped.stderr)


# Killed, and started again.

SMALL = ["photos", "--model", "cli_net:make", "--batch-size", str(BATCH), "--save-every", "0"]
PREDICTED = "cretta.predict.table:batch_table"
"""The model has changed by the batch; the rows do not exist yet."""
CREATED = "cretta.storage.journal:Journal.append"
"""The rows exist and are not saved."""
SAVED = "cretta.adapter:Adapter.save"
"""The rows are saved, the state after them is not."""


@pytest.mark.process
def test_killed_again_and_again_the_file_is_the_same(tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole.csv", tmp_path / "halved.csv"
    moving = [*SMALL, "--method", "bn_adapt", "--statistics", "moving"]
    done(*moving, "--output", whole)
    assert whole.read_text().count("\n") == COUNT + 1
    stopped_at(2, signal.SIGKILL, PREDICTED, halved, *moving)
    stopped_at(5, signal.SIGKILL, SAVED, halved, *moving)
    assert "run the same command again" in stopped_at(8, signal.SIGINT, PREDICTED, halved, *moving)
    assert "images done before" in done(*moving, "--output", halved)
    assert halved.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["halved.csv", "whole.csv"]


@pytest.mark.process
def test_killed_half_way_the_parquet_file_is_the_same(tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole.parquet", tmp_path / "halved.parquet"
    # Four batches: importing PyTorch once more takes long enough.
    learning = [*SMALL, "--batch-size", 30, "--buffer", "source.safetensors"]
    learning += ["--option", "lr=0.01", "--guard", "rollback"]
    done(*learning, "--output", whole)
    stopped_at(2, signal.SIGKILL, CREATED, halved, *learning, run=processes.run)
    other = call(*learning, "--output", halved, "--option", "beta=2")
    assert other.exit_code == 2
    assert "beta was 1.0 and is 2.0" in other.stderr
    assert "--restart" in other.stderr
    assert "images done before" in done(*learning, "--output", halved)
    assert pq.read_table(halved) == pq.read_table(whole)
    assert halved.read_bytes() == whole.read_bytes()


@pytest.mark.process
def test_the_shipped_model_killed_on_class_folders(tmp_path: Path) -> None:
    """In random order, with labels."""
    whole, halved = tmp_path / "whole.parquet", tmp_path / "halved.parquet"
    tent = ["fewer", "--model", "wrn-40-2-cifar10", "--method", "tent", "--batch-size", 4, "--save-every", 0]
    told = done(*tent, "--output", whole)
    assert "shuffled" in told
    assert "accuracy %" in told
    assert "ECE %" in told
    stopped_at(1, signal.SIGKILL, SAVED, halved, *tent)
    done(*tent, "--output", halved)
    assert halved.read_bytes() == whole.read_bytes()
    table = pq.read_table(whole).to_pylist()
    assert len(table) == FEWER
    assert sum(row["correct"] for row in table) > FEWER / 2
    for row in table:
        assert row["path"].split("/")[0] == embedded("test").classes[row["label"]]
        assert row["correct"] == (row["class"] == row["path"].split("/")[0])


# What it does.


def test_rows_are_those_of_a_plain_loop(tmp_path: Path, home: Path) -> None:
    output = tmp_path / "out.parquet"
    told = done("photos", "--model", "cli_net:make", "--buffer", "source.safetensors", "--batch-size", 30)
    Path("predictions.parquet").rename(output)
    sys.path.insert(0, str(home))
    try:
        import cli_net  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(home))
    buffer = cretta.SourceBuffer.load("source.safetensors")
    model = cretta.adapt(cli_net.make().eval(), "cretta", buffer=buffer, guard="rollback")
    table = pq.read_table(output).to_pylist()
    assert [row["path"] for row in table] == [f"{number}.png" for number in range(COUNT)]
    confidences = []
    for first in range(0, COUNT, 30):
        images = []
        for number in range(first, min(first + 30, COUNT)):
            with Image.open(home / "photos" / f"{number}.png") as image:
                images.append(np.array(image))
        logits = model(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255)
        confidences += logits.softmax(-1).amax(-1).tolist()
        mine = table[first : first + 30]
        assert [row["prediction"] for row in mine] == logits.argmax(-1).tolist()
        assert [row["energy"] for row in mine] == cretta.energy(logits).tolist()
    assert [row["confidence"] for row in table] == confidences
    assert f"{100 * np.mean(confidences):.1f}" in told
    for word in ("images", "110", "adapted to 4", "class", "images/s", "predictions.parquet"):
        assert word in told
    assert "\naccuracy" not in told
    assert max(len(line) for line in told.splitlines() if not line.startswith("note: ")) <= 80


@pytest.mark.slow
def test_out_of_the_box(tmp_path: Path) -> None:
    test = embedded("test")
    (tmp_path / "photos").mkdir()
    for number in range(9):
        Image.fromarray(test.images[number]).save(tmp_path / "photos" / f"{number}.png")
    command = [tmp_path / "photos", "--model", "wrn-40-2-cifar10", "--buffer", "embedded"]
    assert "1, adapted to 1" in done(*command, "--output", tmp_path / "out.parquet")
    source = cretta.SourceBuffer.sample(embedded("train"), size=1000)
    model = cretta.adapt(cretta.models.load("wrn-40-2-cifar10"), "cretta", buffer=source)
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    order = [int(Path(row["path"]).stem) for row in table]
    logits = model(torch.from_numpy(test.images[order]).permute(0, 3, 1, 2).float() / 255)
    assert [row["energy"] for row in table] == cretta.energy(logits).tolist()
    assert [row["class"] for row in table] == [test.classes[number] for number in logits.argmax(1).tolist()]


def test_options_reach_the_method(tmp_path: Path) -> None:
    """Each of them changes what comes out."""
    base = ["classes", "--model", "cli_net:make", "--method", "tent", "--batch-size", 12]
    variants: list[list[object]] = [
        [],
        ["--option", "lr=0.1"],
        ["--option", "lr=0.1", "--option", "steps=2"],
        ["--statistics", "moving"],
        ["--seed", 1],
        ["--order", "files"],
        ["--size", "24"],
        ["--size", "24x20"],
        ["--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2"],
        ["--batch-size", 5],
    ]
    seen = set()
    for number, variant in enumerate(variants):
        done(*base, *variant, "--output", tmp_path / f"{number}.csv")
        seen.add((tmp_path / f"{number}.csv").read_bytes())
    assert len(seen) == len(variants)


def test_going_on_with_the_next_folder(tmp_path: Path) -> None:
    """One folder and then the other, from the state kept, are the same as both in one."""
    photos, tent = Path("photos"), ["--model", "cli_net:make", "--method", "tent", "--option", "lr=0.1"]
    for name, numbers in (("both", range(90)), ("one", range(60)), ("two", range(60, 90))):
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / f"{number}.png").write_bytes((photos / f"{number}.png").read_bytes())
    state = tmp_path / "state.safetensors"
    tent += ["--batch-size", 30]  # type: ignore[list-item]
    done(tmp_path / "both", *tent, "--output", tmp_path / "both.csv")
    told = done(tmp_path / "one", *tent, "--output", tmp_path / "one.csv", "--keep-state", state)
    assert str(state) in told.replace("\n", "")
    assert re.search(r"predicted % +class \d: \d", told)
    done(tmp_path / "two", *tent, "--output", tmp_path / "two.csv", "--continue-from", state)

    def predictions(name: str) -> list[list[str]]:
        lines = [line.split(",") for line in (tmp_path / f"{name}.csv").read_text().splitlines()[1:]]
        return [[*line[:1], *line[2:]] for line in lines]  # without the batch's number

    assert predictions("one") + predictions("two") == predictions("both")
    wrong = call(tmp_path / "two", "--model", "wrn-40-2-cifar10", "--method", "tent", "--continue-from", state)
    assert wrong.exit_code == 2
    assert "does not fit" in wrong.stderr


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(9):
        content = Path("photos", f"{number}.png").read_bytes()
        (tmp_path / "photos" / f"{number}.png").write_bytes(content if number != 4 else b"no image")
    command = [tmp_path / "photos", "--model", "cli_net:make", "--method", "source", "--batch-size", 3]
    result = call(*command, "--output", tmp_path / "out.csv")
    assert result.exit_code == 2
    for word in ("4.png", "3 of 9 images are done", "--on-error skip"):
        assert word in result.stderr
    assert not (tmp_path / "out.csv").exists()
    told = done(*command, "--output", tmp_path / "out.csv", "--on-error", "skip")
    assert "9, 1 of them could not be read" in told
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[5].startswith('"4.png",1,,,,,false,')
    assert "cannot be read as an image" in lines[5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["classes", "--batch-size", 1, "--labels", "no"],
            "--statistics moving for images in mixed order, or --statistics auto",
        ),
        (["classes", "--batch-size", 23], "the last batch has 1 of 23"),
        (["classes", "--buffer", "embedded"], "of CIFAR-10"),
        (["classes", "--option", "lr=5", "--guard", "reset", "--batch-size", 12], "reset to the source model"),
    ],
)
def test_notes_on_what_is_probably_not_meant(arguments: list[object], said: str, tmp_path: Path) -> None:
    base = ["--model", "cli_net:make", "--output", tmp_path / "out.csv", "--option", "augment=none"]
    base += ["--buffer", "source.safetensors"] if "--buffer" not in arguments else []
    assert said in done(*arguments, *base)


def test_folders_that_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "photos" / "monday").mkdir(parents=True)
    (tmp_path / "photos" / "tuesday").mkdir()
    for number in range(4):
        day = "monday" if number % 2 else "tuesday"
        (tmp_path / "photos" / day / f"{number}.png").write_bytes(Path("photos", f"{number}.png").read_bytes())
    base = [tmp_path / "photos", "--model", "cli_net:make", "--method", "source", "--overwrite"]
    base += ["--output", tmp_path / "out.csv"]
    assert "--labels yes" in done(*base)
    told = done(*base, "--labels", "yes")
    assert "accuracy" in told
    assert "in alphabetical order: 0 monday, 1 tuesday. If the model has another order" in told
    names = tmp_path / "names.txt"
    names.write_text("\n".join(["tuesday", "monday", *"abcdefgh"]))
    told = done(*base, "--class-names", names)
    assert "accuracy" in told
    assert any(name in told for name in ("monday", "tuesday", *"abcdefgh"))
    labels = [line.split(",")[8] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    assert sorted(labels) == ["0", "0", "1", "1"]


def test_images_beside_class_folders(tmp_path: Path) -> None:
    images = tmp_path / "mixed"
    for name in ("cat", "dog"):
        (images / name).mkdir(parents=True)
        (images / name / "1.png").write_bytes(Path("photos", "1.png").read_bytes())
    for name in ("10.png", "9.png"):
        (images / name).write_bytes(Path("photos", "2.png").read_bytes())
    base = [images, "--model", "wrn-40-2-cifar10", "--method", "source", "--overwrite", "--output", tmp_path / "o.csv"]
    beside = f"note: images beside the class folders of {images} (2, such as 9.png) have no label"
    told = done(*base)
    assert (
        f"{beside}, so all images are taken without labels; move them elsewhere to use the folders as labels." in told
    )
    assert "are not the classes" not in told
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 1 + 4
    told = done(*base, "--labels", "yes")
    assert f"{beside} and are left out." in told
    assert "accuracy %" in told
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 1 + 2
    assert "have no label" not in done(*base, "--labels", "no")


def test_buffers_without_labels_or_with_labels_in_another_order(tmp_path: Path) -> None:
    train = embedded("train")
    source = tmp_path / "source.safetensors"
    base = ["fewer", "--model", "wrn-40-2-cifar10", "--method", "source", "--buffer", source, "--overwrite"]
    base += ["--output", tmp_path / "out.csv"]
    cretta.SourceBuffer(train.images[:20], [-1] * 20).save(source)
    assert "estimated" not in done(*base)
    cretta.SourceBuffer(train.images[:20], (train.labels[:20] + 1) % 10).save(source)
    told = done(*base)
    assert "estimated accuracy %" in told
    assert re.search(
        r"note: the source model answers \d+ % of 20 labeled source images correctly, not better than chance: probably "
        "the labels are numbered in another order than its 10 classes; list the classes in the model's order in "
        r"classes\.txt and build the buffer again\.\n",
        told,
    )
    cretta.SourceBuffer(train.images[:20], train.labels[:20]).save(source)
    assert "not better than chance" not in done(*base)


def test_the_order_of_classes_is_the_models_or_that_of_a_file(tmp_path: Path) -> None:
    """A network that names its classes; then one that does not, with and without a list beside the images."""
    images, test = tmp_path / "photos", embedded("test")
    for number in range(20):
        folder = images / test.classes[test.labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(test.images[number]).save(folder / f"{number}.png")
    for name in test.classes:
        (images / name).mkdir(exist_ok=True)
        Image.fromarray(test.images[0]).save(images / name / "more.png")
    backwards = list(reversed(test.classes))
    module = NET + f"def named():\n    net = make()\n    net.classes = {backwards}\n    return net\n"
    (tmp_path / "cli_named_net.py").write_text(module)
    sys.path.insert(0, str(tmp_path))
    base = [images, "--method", "source", "--overwrite", "--output", tmp_path / "out.csv", "--model"]

    def labels() -> dict[str, str]:
        lines = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
        return {line[0].strip('"').split("/")[0]: line[8] for line in lines}

    try:
        assert "alphabetical" not in done(*base, "cli_named_net:named")
        assert labels() == {name: str(number) for number, name in enumerate(backwards)}
        assert "in alphabetical order: 0 airplane, 1 automobile" in done(*base, "cli_named_net:make")
        assert labels() == {name: str(number) for number, name in enumerate(sorted(backwards))}
        (tmp_path / "classes.txt").write_text("\n".join(backwards))
        assert "alphabetical" not in done(*base, "cli_named_net:make")
        assert labels() == {name: str(number) for number, name in enumerate(backwards)}
    finally:
        sys.path.remove(str(tmp_path))


# Wrong requests.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lost"], "lost is not there"),
        (
            ["photos", "--labels", "yes"],
            "and no class folders, so there are no labels: move the images into one folder per class.",
        ),
        (["cli_net.py"], "a file of another kind"),
        (["--model", "lost"], "wrn-40-2-cifar10"),
        (
            ["--model", "lost"],
            "Give one of these, a checkpoint, timm:NAME, torchvision:NAME, hf:NAME, or module:callable.",
        ),
        (["--method", "source", "--guard", "rollback"], "Use no --guard, or a method that learns"),
        (["--option", "seed=1", "--seed", "2"], "--seed and --option seed=… set the same option; give one of them."),
        (["--model", "lost:make"], "cannot be imported"),
        (["--model", "cli_net:lost"], "cannot be imported"),
        (["--model", "source.safetensors"], "--architecture wrn-40-2 and --classes 10"),
        (["--architecture", "wrn-40-2"], "with a checkpoint"),
        (["--method", "tant"], "Did you mean 'tent'"),
        (["--method", "cretta"], "--buffer FILE"),
        (["--method", "cretta", "--buffer", "lost"], "Make one: cretta buffer build FOLDER --output"),
        (
            ["--method", "cretta", "--buffer", "photos"],
            "photos: is a folder; expected a source buffer saved by cretta.",
        ),
        (["--method", "cretta", "--buffer", "photos"], "Make one: cretta buffer build photos --output"),
        (["--option", "lr"], "key=value"),
        (["--option", "lrr=1"], "Did you mean 'lr'"),
        (["--option", "lr=fast"], "lr='fast'"),
        (["--option", "lr=1", "--option", "lr=2"], "given twice"),
        (["--option", "steps=1.5"], "expected an integer"),
        (["--option", "guard=warn", "--guard", "warn"], "give one of them"),
        (["--preset", "cifar11"], "cifar1"),
        (["--model", "cli_net:plain"], "--method source predicts with any model."),
        (["--statistics", "mean"], "'moving', 'auto' (what BatchNorm normalizes with"),
        (
            ["--guard", "shout"],
            "unknown --guard 'shout'. Allowed: fallback, off, reset, rollback, warn.",
        ),
        (["--seed", "-1"], "--seed"),
        (["--batch-size", "0"], "cretta: --batch-size 0: expected an integer, at least 1."),
        (["--batch-size", "few"], "cretta: --batch-size few: expected an integer."),
        (["--size", "big"], "--size big"),
        (["--size", "0"], "--size 0"),
        (["--order", "size"], "files, random"),
        (["--labels", "maybe"], "auto, no, yes"),
        (["--labels", "yes", "--class-names", "cli_net.py"], "expected folders named after the 18 classes ("),
        (["--class-names", "lost.txt"], "lost.txt"),
        (["--on-error", "cry"], "stop"),
        (["--device", "tpu"], "--device tpu"),
        (["--device", "cuda:99"], "--device cuda:99"),
        (["--mean", "a"], "--mean a"),
        (["--mean", "0.5,0.5,0.5"], "--mean 0.5,0.5,0.5, no --std: expected one finite number per channel for both"),
        (["--workers", "0"], "--workers"),
        (["--save-every", "-1"], "--save-every -1.0: give"),
        (["--continue-from", "lost"], "lost: no such file"),
        (["--continue-from", "source.safetensors"], "Save one by Adapter.save or cretta predict --keep-state."),
        (["--keep-state", "nowhere/state.safetensors"], "nowhere does not exist"),
        (["--keep-state", "state.pt"], "--keep-state state.pt: expected a name that ends in .safetensors."),
        (["--output", "out.json"], ".parquet or .csv"),
        (["--output", "nowhere/out.csv"], "nowhere does not exist"),
        (["--output", "cli_net.py/out.csv"], "cli_net.py is a file; give the name of a folder."),
        (["--output", "there.csv"], "choose another name, or pass --overwrite."),
    ],
)
def test_wrong_requests_get_a_message_and_change_nothing(arguments: list[str], said: str, home: Path) -> None:
    Path("there.csv").write_text("mine")
    before = sorted(str(file) for file in home.rglob("*") if "__pycache__" not in str(file))
    images = [] if arguments[0] in ("lost", "cli_net.py", "photos") else ["classes"]
    defaults = {"--model": "cli_net:make", "--method": "tent", "--output": "out.csv"}
    extra = [part for name, value in defaults.items() if name not in arguments for part in (name, value)]
    result = call(*images, *arguments, *extra)
    assert result.exit_code == 2, result.output
    assert said in result.stderr.replace("\n", "")
    assert "Traceback" not in result.output + result.stderr
    assert not re.search(r"=(True|False)\b|\bNone\b", result.stderr)  # words of the Python API
    assert sorted(str(file) for file in home.rglob("*") if "__pycache__" not in str(file)) == before
    assert Path("there.csv").read_text() == "mine"


def test_values_are_of_the_type_that_the_method_declares() -> None:
    texts = ["lr=1e-2", "steps=3", "episodic=yes", "statistics=none", "skip=fc, layer4", "guard=warn", "source=target"]
    found = parse.options("cretta", texts)
    expected: dict[str, Any] = {
        "lr": 0.01,
        "steps": 3,
        "episodic": True,
        "statistics": None,
        "skip": ("fc", "layer4"),
        "guard": "warn",
        "source": "target",
    }
    assert found == expected
    assert parse.options("tent", ["nesterov=False"]) == {"nesterov": False}
    assert parse.size(None) is None
    assert parse.size("224") == 224
    assert parse.size("32x48") == (32, 48)
    assert parse.numbers("1,2.5", "--mean") == (1.0, 2.5)
    assert type(parse.share_or_count("1")) is int
    assert parse.share_or_count("0.5") == 0.5
    assert parse.device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(OptionError, match="--size ten"):
        parse.share_or_count("ten")


def test_help_teaches() -> None:
    told = done("--help")
    for word in (
        "--buffer embedded",
        "--statistics moving",
        "--method source",
        "run the same command again",
        "--on-error",
    ):
        assert word in told


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        command = ["classes", "--model", "cli_net:make", "--method", "tent", "--device", device]
        done(*command, "--output", tmp_path / f"{device}.parquet")
    gpu, cpu = (pq.read_table(tmp_path / f"{device}.parquet")["energy"].to_numpy() for device in ("cuda", "cpu"))
    assert np.allclose(gpu, cpu, atol=1e-3)
