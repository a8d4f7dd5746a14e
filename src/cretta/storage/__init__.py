"""Resumable work: atomic files, locks, manifests of settings, journals of finished parts, files of tensors."""

from cretta.storage.files import atomic_write, check_target, lock, require_lock
from cretta.storage.manifest import Manifest, require_same

__all__ = ["Manifest", "atomic_write", "check_target", "lock", "require_lock", "require_same"]
