# SPDX-License-Identifier: BSD-3-Clause
"""The folders of collectives/, from the lowest: what each of them may use beside itself. A folder
that is not named here is a violation, so that a new one gets its place."""

STATE = {"call", "program", "plan", "world", "match"}
LIFE = STATE | {"local", "op"}
WAYS = {"engine", "direct", "sequence", "arrival", "pipeline"}

MAY_USE = {
    "call": set(),
    "program": {"call"},
    "plan": {"call", "program"},
    "world": {"call", "program", "plan"},
    "match": {"call", "program", "plan", "world"},
    "local": {"call"},
    "op": STATE | {"local"},
    "xfer": LIFE,
    "area": LIFE,
    **{path: LIFE | {"xfer"} for path in WAYS},  # which do not know each other
    **{path: LIFE | {"xfer", "area"} for path in ("direct", "pipeline")},
    "progress": LIFE,
    "api": LIFE | {"area", "progress", "xfer"} | WAYS,
}


def may_use(user, used):
    return user == used or used in MAY_USE.get(user, set())


def folder_of(path):
    """The folder of a file below collectives/; None: it is none of them."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "collectives" else None
