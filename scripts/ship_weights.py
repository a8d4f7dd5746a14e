"""Turn trained float32 weights into the small file that ships inside the package.

    python scripts/ship_weights.py TRAINED.safetensors --name wrn-40-2-cifar10

Convolutions and the classifier become float16; norm parameters and statistics stay float32, because
adaptation starts from them and they are tiny. The index beside the file gets its sha256; the rest of the model's card
(names of the classes, license, training data) is written there by hand.
"""

import argparse
import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from cretta.models.weights import build, load, load_checkpoint

CARD = ("class_names", "side", "input", "license", "trained_on", "recipe", "scores")
SHIPPED = Path(__file__).resolve().parents[1] / "src" / "cretta" / "models" / "shipped"


def halve(key: str, value: Tensor) -> Tensor:
    if value.dim() < 2:
        return value.contiguous()
    half = value.half()
    if not half.isfinite().all():
        raise SystemExit(f"{key} does not fit float16: its largest magnitude is {value.abs().max():.3g}.")
    return half.contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="float32 .safetensors of the trained network")
    parser.add_argument("--name", default="wrn-40-2-cifar10", help="architecture-dataset")
    arguments = parser.parse_args()

    name: str = arguments.name
    architecture = name.rpartition("-")[0]
    trained = safetensors.torch.load_file(arguments.source)
    original = load_checkpoint(trained, build(architecture, classes=trained["fc.weight"].shape[0])).eval()

    SHIPPED.mkdir(parents=True, exist_ok=True)
    file = SHIPPED / f"{name}.safetensors"
    # No metadata: safetensors writes several entries in no fixed order, and the hash would change.
    content = safetensors.torch.save({key: halve(key, trained[key]) for key in sorted(trained)})
    file.write_bytes(content)

    listing = SHIPPED / "index.json"
    index = json.loads(listing.read_text("utf-8")) if listing.exists() else {}
    index.setdefault(name, dict.fromkeys(CARD, ""))
    index[name] |= {
        "architecture": architecture,
        "file": file.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "source_sha256": hashlib.sha256(arguments.source.read_bytes()).hexdigest(),
    }
    listing.write_text(json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    if missing := [key for key in CARD if not index[name][key]]:
        raise SystemExit(f"Now fill in {', '.join(missing)} of {name} in {listing}.")

    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        gap = (load(name)(images) - original(images)).abs().max()
    print(f"{file.name}: {len(content) / 1e6:.2f} MB, largest change of a logit on noise {gap:.2g}")


if __name__ == "__main__":
    main()
