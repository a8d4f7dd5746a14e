"""Datasets from archives and folders that are at hand."""

import os
import shutil
from pathlib import Path

from cretta.data.folder import some
from cretta.data.registry import locate
from cretta.data.releases import Archive
from cretta.errors import StateError

from .install import examine, install, named
from .job import Job, check_space, sum_of


def bring(job: Job, given: Path) -> None:
    """Takes the dataset from an archive, a folder of archives, or its unpacked folder."""
    wanted, home = job.wanted, job.home
    folder = locate(wanted, given) if given.is_dir() else None
    if folder is not None:
        checked = examine(job, folder)
        target = home / named(job, folder)
        job.clear(target)
        how = _link(job, folder.resolve(), target)
        job.say(f"{wanted.name} is in {target}, {how} {folder}; {checked}.")
        return
    files = [given] if given.is_file() else wanted.archives_in(given)
    if not files:
        looked = some([*(each.file for each in wanted.archives), f"the folder {wanted.folder}"])
        raise StateError(f"{given} does not hold {wanted.name}: looked for {looked}. Give what holds one of them.")
    if not any(each.folders for each in wanted.archives):
        files = files[:1]
    known = [each for each in (_recognise(job, file) for file in files) if each]
    as_published = len(known) == len(files)
    check_space(home, 0, wanted.unpacked_size_of(known if as_published else []))
    beside = given.parent if given.is_file() else given
    checked = install(job, files, beside, examined=not as_published)
    listed = some([file.name for file in files])
    said = f"MD5 of {listed} as published" if as_published else f"{listed} is another packing: {checked}"
    job.say(f"{wanted.name} is in {wanted.path(home)}; {said}.")


def _recognise(job: Job, file: Path) -> Archive | None:
    """Which of the published archives a file is; None if it is another packing."""
    published = {each.md5: each for each in (*job.wanted.archives,)}
    if not published:
        return None
    found = sum_of(file, file.name, job.progress)
    for each in published.values():
        if each.file == file.name and each.md5 != found:
            raise StateError(
                f"{file} has MD5 {found}, but {each.file} as published has {each.md5}: get it anew, or, if it is "
                "another packing, give it another name."
            )
    return published.get(found)


def _link(job: Job, folder: Path, target: Path) -> str:
    try:
        target.symlink_to(folder, target_is_directory=True)
    except OSError:
        # Some systems let only administrators make links.
        with job.workplace() as work:
            shutil.copytree(folder, work / "copy")
            os.replace(work / "copy", target)
        return "a copy of"
    return "a link to"
