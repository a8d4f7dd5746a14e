"""Datasets unpacked, read where nothing else vouches for them, and put in their place."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cretta.data.check import check
from cretta.data.folder import some
from cretta.data.registry import locate
from cretta.errors import StateError

from .job import Job, move
from .unpack import unpack


def install(job: Job, files: Sequence[Path], beside: Path, *, examined: bool = False) -> str:
    """Unpacks archives beside their place, and moves the whole there in one step; returns what was examined.

    ``beside`` is where a list of ImageNet's classes may lie.
    """
    wanted = job.wanted
    with job.workplace() as work:
        whole, name = work / "whole", wanted.folder
        for number, file in enumerate(files):
            unpacked = work / str(number)
            unpack(file, unpacked, job.progress)
            if wanted.name == "imagenet" and locate(wanted, unpacked) is None:
                _into_classes(unpacked, beside)
            made = locate(wanted, unpacked)
            if made is None:
                raise StateError(f"{file} does not hold {wanted.name}: give an archive with {wanted.folder} in it.")
            name = named(job, made)
            move(made, whole)
        said = examine(job, whole) if examined else ""
        target = job.home / name
        # Where a part of the dataset is, the rest joins it; not so in somebody else's folder.
        if target.is_symlink() or not (target.is_dir() and wanted.is_present(target)):
            job.clear(target)
        move(whole, target)
    return said


def named(job: Job, folder: Path) -> str:
    """The folder to make: as the dataset's layout is called, if it has several."""
    return folder.name if folder.name in job.wanted.other_folders else job.wanted.folder


def examine(job: Job, folder: Path) -> str:
    """Reads the dataset; says what was checked, and raises if it cannot be used."""
    job.progress(f"reading {job.wanted.name}", 0, None)
    findings = list(check(job.wanted, folder))
    broken = [each for each in findings if each.verdict == "damaged"]
    if broken or not any(each.images for each in findings):
        fault = (broken or findings)[0]
        raise StateError(f"{job.wanted.name} cannot be used, {fault.part}: {fault.message}")
    short = [f"{each.part} {each.message}" for each in findings if each.verdict == "incomplete"]
    sums = [f"MD5 of {each.message}" for each in findings if each.part == "MD5"]
    said = ", ".join([f"read and counted {some([each.part for each in findings if each.images])}", *sums])
    return said + (f"; NOT the whole dataset: {some(short)}" if short else "")


def _into_classes(folder: Path, beside: Path) -> None:
    """Sorts ImageNet's validation images, which come in one heap, into class folders, as a list beside them says."""
    images = sorted(folder.rglob("ILSVRC2012_val_*.JPEG"))
    classes = _classes([image.stem for image in images], beside) if images else {}
    for image in images:
        (folder / classes[image.stem]).mkdir(exist_ok=True)
        os.replace(image, folder / classes[image.stem] / image.name)


def _classes(stems: list[str], beside: Path) -> dict[str, str]:
    lists = (each for each in beside.iterdir() if each.suffix in (".csv", ".txt", ".sh"))
    for table in sorted(each for each in lists if each.stat().st_size < 20_000_000):
        text = table.read_text("utf-8", errors="replace")
        classes = dict(re.findall(r"(ILSVRC2012_val_\d{8})\S*?[\s,]+(n\d{8})\b", text))
        alone = text.split()
        if len(alone) == len(stems) and all(re.fullmatch(r"n\d{8}", each) for each in alone):
            classes = dict(zip(stems, alone, strict=True))
        if all(stem in classes for stem in stems):
            return classes
    raise StateError(
        f"the images of {beside} are not sorted by class: put a list beside the archive that names the class of "
        "each (LOC_val_solution.csv of Kaggle's ImageNet, or valprep.sh), or give a folder of class folders."
    )
