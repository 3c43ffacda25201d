"""Tables that carry their version, in SQLite and PostgreSQL, and their migration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, String, Table, func, insert, inspect, select, update

ID = String().with_variant(String(collation="C"), "postgresql")
"""Type of an identifier. It is sorted by its bytes in every database, so that pages of two databases can be merged."""


def add_columns(table: str, **kinds: str) -> tuple[str, ...]:
    """Return the SQL that adds columns to a table, each given as name and SQL type."""
    return tuple(f'ALTER TABLE {table} ADD COLUMN "{name}" {kind}' for name, kind in kinds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedSchema:
    """The tables of one part of the gateway.

    A database of an older version is migrated step by step in one transaction. One of a later version is refused, since
    an older process would write wrongly in it.
    """

    what: str
    """The kind of rows, for messages: ``calls``."""
    shared: Sequence[Table]
    """Tables that every database has. The first exists since version 1."""
    local: Sequence[Table] = ()
    """Tables that only a process's own SQLite file has."""
    versions: Table
    """One of ``shared``: its column ``version`` has the version. Tables without it have version 1."""
    steps: Mapping[int, Sequence[str]]
    """Migration to each version from the one before, in SQL. New tables are made anyway."""

    @property
    def version(self) -> int:
        """The version of these tables."""
        return max(self.steps)

    def bring_up_to_date(self, connection: Connection) -> None:
        """Make the tables, or migrate existing ones to this version.

        Raises:
            OSError: the tables are of a later version, or of none that there was, or lack columns.
        """
        first, *others = self.shared
        if connection.dialect.name == "sqlite":
            # Another process may be making them now, and each statement would be a transaction of its own.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            others += self.local
        is_new = not inspect(connection).has_table(first.name)
        first.metadata.create_all(connection, tables=[first, *others])
        version = connection.execute(select(func.max(self.versions.c.version))).scalar()
        if version is None:
            version = self.version if is_new else 1
            connection.execute(insert(self.versions).values(version=version))
        if not (isinstance(version, int) and 1 <= version <= self.version):  # SQLite keeps any type in any column
            raise OSError(f"tables of {self.what} have schema {version!r}, expected {self.version} at most")
        for step in range(version + 1, self.version + 1):
            for statement in self.steps[step]:
                connection.exec_driver_sql(statement)
            connection.execute(update(self.versions).values(version=step))
        for table in (first, *others):
            there = {column["name"] for column in inspect(connection).get_columns(table.name)}
            if missing := [column.name for column in table.columns if column.name not in there]:
                raise OSError(f"the table {table.name} lacks {', '.join(missing)}: another program has made it")
