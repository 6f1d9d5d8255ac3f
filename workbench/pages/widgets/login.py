"""Streamlit's own login before the pages, where ``secrets.toml`` has an ``[auth]`` section: who steers, who only looks.

``[workbench]`` there lists e-mail addresses, ``users`` and ``readers``. Nobody else comes in: an identity provider may
know everybody in the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from workbench.services.access import Role
from workbench.text import words


def role_of(user: Mapping[str, Any], emails_of_roles: Mapping[str, Any]) -> Role | None:
    """What somebody who is logged in may do; None for nothing. An unverified address is nobody's."""
    email = str(user.get("email") or "").casefold()
    if not email or user.get("email_verified") is False:
        return None
    for name, role in (("users", Role.OWNER), ("readers", Role.READER)):
        if email in [str(address).casefold() for address in emails_of_roles.get(name) or []]:
            return role
    return None


def has_login() -> bool:
    """Whether there is a login."""
    return st.secrets.load_if_toml_exists() and "auth" in st.secrets


def role() -> Role | None:
    """Of who looks now: without a login everybody is let through, and the door alone decides."""
    if not has_login():
        return Role.OWNER
    if not st.user.get("is_logged_in"):
        return None
    return role_of(dict(st.user), dict(st.secrets.get("workbench", {})))


def let_in() -> bool:
    """Whether the page may be drawn; otherwise it asks to log in, or says who is not let in."""
    if role() is not None:
        return True
    st.title("Workbench", anchor=False)
    if st.user.get("is_logged_in"):
        account = words.escape(str(st.user.get("email") or "This account"))
        st.error(f"{account} is not among the users or readers of this page.", icon=":material/block:")
        st.button("Log out", on_click=st.logout)
    else:
        st.button("Log in", icon=":material/login:", type="primary", on_click=st.login)
    return False
