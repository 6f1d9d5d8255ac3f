"""A folder to take away: rendered in memory first, then written as a whole or not at all."""

from __future__ import annotations

import io
import secrets
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine.config.errors import InputError
from workbench.export.mapping.rows import UnexpressedSetting

_EXECUTABLE, _PLAIN = 0o755, 0o644


@dataclass(frozen=True, slots=True)
class Bundle:
    """File names and their text; ``executable`` ones get the bit. ``unexpressed`` are settings that it does not say."""

    name: str
    files: dict[str, str]
    executable: frozenset[str] = frozenset()
    unexpressed: tuple[UnexpressedSetting, ...] = ()

    def mode(self, name: str) -> int:
        """Permissions of a file."""
        return _EXECUTABLE if name in self.executable else _PLAIN


def write(bundle: Bundle, out: Path) -> None:
    """Write a bundle as the folder ``out``.

    Raises:
        InputError: the folder exists and is not empty, or cannot be written.
    """
    check_free(out)
    scratch = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        scratch.mkdir(parents=True)
        for name, text in bundle.files.items():
            (scratch / name).write_text(text, encoding="utf-8")
            (scratch / name).chmod(bundle.mode(name))
        scratch.replace(out)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise InputError("--out", str(out), f"cannot be written ({error.strerror}); choose another") from None


def zip_bytes(bundle: Bundle) -> bytes:
    """A bundle as a zip file that unpacks into one folder, with its permissions."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in bundle.files.items():
            entry = zipfile.ZipInfo(f"{bundle.name}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | bundle.mode(name)) << 16
            archive.writestr(entry, text)
    return memory.getvalue()


def check_free(out: Path) -> None:
    """InputError unless ``out`` does not exist or is an empty folder."""
    try:
        is_taken = out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir())))
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be read ({error.strerror}); choose another") from None
    if is_taken:
        raise InputError("--out", str(out), "exists and is not an empty folder; choose another")
