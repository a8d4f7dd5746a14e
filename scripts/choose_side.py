"""Choose the side to which EfficientNet-Lite0 scales the images of Tiny-ImageNet.

    python scripts/choose_side.py TINY_IMAGENET_FOLDER

Needs cretta[imagenet]. Prints the accuracy on two training images per class for several sides, none of them a test
image. The network has seen larger versions of these images in its own training: the best side counts, not the accuracy.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from cretta import data
from cretta.models.imagenet import tiny_imagenet

SIDES = (64, 96, 128, 160, 192, 224)
PER_CLASS = 2
BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="tiny-imagenet-200, with wnids.txt and train/ in it")
    arguments = parser.parse_args()
    dataset = data.tiny_imagenet(arguments.folder, "train")
    labels = np.asarray(dataset.labels)
    chosen = np.concatenate([np.flatnonzero(labels == label)[:PER_CLASS] for label in np.unique(labels)])
    images = torch.from_numpy(dataset.read(chosen)).permute(0, 3, 1, 2).float() / 255
    truth = torch.from_numpy(labels[chosen])
    for side in SIDES:
        model = tiny_imagenet(side)
        with torch.inference_mode():
            predictions = torch.cat([model(batch).argmax(1) for batch in images.split(BATCH)])
        accuracy = 100 * float((predictions == truth).float().mean())
        print(f"{side} px: accuracy {accuracy:.1f} % of {len(truth)} images")


if __name__ == "__main__":
    main()
