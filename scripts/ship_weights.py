"""Turn weights of `cretta train` into the small file and the model card that ship inside the package.

    python scripts/ship_weights.py TRAINED.safetensors [--before "9.4 epochs from random weights"]

The name is that of the architecture and the dataset. Convolutions and the classifier become float16; norm parameters
and statistics stay float32, because adaptation starts from them and they are tiny. The card in index.json is made from
what training recorded in the file: data, recipe, command, test accuracy and calibration error. The training log and its
curve are copied to docs/results. `--before` says how the initial weights of `--init` were trained.
"""

import argparse
import dataclasses
import hashlib
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from cretta.data.registry import RELEASES
from cretta.models.weights import WEIGHTS, build, load, load_checkpoint
from cretta.storage import tensorfile
from cretta.training import Recipe

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "src" / "cretta" / "models" / "shipped"
RESULTS = ROOT / "docs" / "results"
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Recipe)}


def halve(key: str, value: Tensor) -> Tensor:
    if value.dim() < 2:
        return value.contiguous()
    half = value.half()
    if not half.isfinite().all():
        raise SystemExit(f"{key} does not fit float16: its largest magnitude is {value.abs().max():.3g}.")
    return half.contiguous()


def command(facts: dict[str, Any]) -> str:
    """Return the command line of the training, with the options that are not the defaults."""
    options = {"architecture": facts["architecture"], "init": facts["init"], **facts["recipe"]}
    given = {
        name: value
        for name, value in options.items()
        if name != "backend" and value is not None and value != {"architecture": "wrn-40-2", **DEFAULTS}.get(name)
    }
    words = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in given.items()]
    return " ".join(["cretta train", facts["dataset"], *words, f"--output {facts['dataset']}.safetensors"])


def card(facts: dict[str, Any], before: str, seen: str = "") -> dict[str, Any]:
    """Return the model card: what it was trained on, how, and how good it is."""
    recipe, release = facts["recipe"], RELEASES[facts["dataset"]]
    used = f"{50_000 - recipe['holdout']:,}".replace(",", " ")
    loss = f"Jensen-Shannon loss of weight {recipe['jsd']:g}" if recipe["jsd"] else "no Jensen-Shannon loss"
    epochs = f"{facts['epochs']:.1f} epochs in {facts['minutes']:.0f} minutes of one CPU core"
    return {
        "class_names": facts["classes"],
        "side": facts["side"],
        "input": f"RGB in [0, 1], (N, 3, {facts['side']}, {facts['side']}); no normalization",
        "trained_on": f"{facts['dataset']}, {used} of its 50 000 training images"
        + (f", after {seen} by the initial weights" if seen else ""),
        "data_license": release.license,
        "license": "Apache-2.0",
        "recipe": f"cross-entropy, SGD with Nesterov momentum {recipe['momentum']:g}, learning rate up to "
        f"{recipe['lr']:g}, weight decay {recipe['weight_decay']:g}, batches of {recipe['batch_size']}, flips, crops, "
        f"AugMix on {100 * recipe['augmix']:.0f} % of the images ({loss}); "
        f"{f'{before}, then ' if before else ''}{epochs}",
        "command": command(facts),
        "scores": {
            "test accuracy, %": round(100 * facts["accuracy"], 2),
            "test ECE, %": round(100 * facts["calibration_error"], 2),
            "accuracy on held-out training images, %": round(100 * facts["holdout_accuracy"], 2),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="weights (.safetensors) that cretta train wrote")
    parser.add_argument("--before", default="", help="how the initial weights were trained")
    parser.add_argument("--seen", default="", help="which images that was on, such as: all of them")
    arguments = parser.parse_args()

    trained, facts = tensorfile.read(arguments.source, WEIGHTS)
    name = f"{facts['architecture']}-{facts['dataset']}"
    original = load_checkpoint(trained, build(facts["architecture"], classes=len(facts["classes"]))).eval()

    file = SHIPPED / f"{name}.safetensors"
    # No metadata: safetensors writes several entries in no fixed order, and the hash would change. No counts of
    # batches: nothing uses them.
    names = sorted(key for key in trained if not key.endswith("num_batches_tracked"))
    content = safetensors.torch.save({key: halve(key, trained[key]) for key in names})
    file.write_bytes(content)
    listing = SHIPPED / "index.json"
    index = json.loads(listing.read_text("utf-8"))
    index[name] = card(facts, arguments.before, arguments.seen) | {
        "architecture": facts["architecture"],
        "file": file.name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    listing.write_text(json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    for suffix in (".csv", ".png"):
        shutil.copyfile(arguments.source.with_suffix(suffix), RESULTS / f"training-{name}{suffix}")

    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (load(name)(images) - original(images)).abs().max()
    print(f"{file.name}: {len(content) / 1e6:.2f} MB, largest change of a logit on noise {difference:.2g}")


if __name__ == "__main__":
    main()
