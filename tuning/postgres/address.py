"""The address of a database: checked, for Optuna, and as it may be shown, without a password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from engine.config.errors import InputError

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_EXAMPLE = "postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is. ``shown`` is for people and files; the password is in none of them."""

    url: str
    shown: str
    secrets: tuple[str, ...] = ()

    @property
    def for_optuna(self) -> str:
        """As SQLAlchemy wants it."""
        return f"postgresql+psycopg:{self.url.partition(':')[2]}"

    def spoken(self, error: object) -> str:
        """An error in one line, in which no password is left."""
        text = " ".join(str(error).split())
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def address(given: str) -> Address:
    """An address from what a person gives.

    Raises:
        InputError: it is none of PostgreSQL.
    """
    try:
        parts = urlsplit(given)
        known = parts.scheme in SCHEMES and (parts.path.strip("/") or "dbname" in parts.query)
        _ = parts.port
    except ValueError:
        known = False
    if not known:
        raise InputError("storage", _hidden(given), f"is no address of a database; give {_EXAMPLE}")
    query = parse_qsl(parts.query)
    secrets = [parts.password or "", *(value for name, value in query if name == "password")]
    place = parts.netloc.rpartition("@")
    user = place[0].partition(":")[0]
    netloc = f"{user}@{place[2]}" if user else place[2]
    open_query = urlencode([(name, value) for name, value in query if name != "password"], safe="/")
    shown = f"postgresql://{netloc}{parts.path}" + (f"?{open_query}" if open_query else "")
    url = f"postgresql:{given.partition(':')[2]}"
    both = {text for secret in secrets for text in (secret, unquote(secret)) if text}
    return Address(url, shown, tuple(sorted(both, key=len, reverse=True)))


def _hidden(given: str) -> str:
    """What was given, up to where a password may begin."""
    return given.partition(":")[0][:20] + (":..." if ":" in given else "")
