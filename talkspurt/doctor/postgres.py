"""``talkspurt doctor`` with ``postgres.url``: checks that the database answers, and that the account may write there.

The check reads and changes nothing. It checks the rights that ``gateway/postgres.py`` needs.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from gateway import postgres
from gateway.call_log.schema import SCHEMA as CALLS
from gateway.metering.schema import SCHEMA as RECORDS
from gateway.versioned_schema import VersionedSchema
from talkspurt.config.settings import Config
from talkspurt.doctor.finding import Finding

_NAME = "PostgreSQL"
_SERVER = text(
    "SELECT current_setting('server_version') AS version, current_user AS account,"
    " current_setting('server_encoding') AS encoding, current_setting('transaction_read_only') = 'on' AS read_only,"
    " COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create"
)
_LACKING = text(
    "SELECT privilege || ' on ' || name FROM unnest(CAST(:tables AS text[])) AS name,"
    " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege"
    " WHERE NOT has_table_privilege(quote_ident(name), privilege) ORDER BY 1"
)
_OWNS = text(
    "SELECT COALESCE(bool_and(pg_has_role(tableowner, 'MEMBER')), true) FROM pg_tables"
    " WHERE schemaname = current_schema() AND tablename = ANY(CAST(:tables AS text[]))"
)


def check(config: Config) -> Finding:
    """Check the database of ``postgres.url``; each query has ``postgres.timeout_s``."""
    kept = [CALLS] * bool(config.calls.folder) + [RECORDS] * bool(config.records.database_url)
    database = postgres.opened(config.postgres)
    faults, tables = [], []
    try:
        with database.connect() as connection:
            server = connection.execute(_SERVER).one()
            if server.read_only:
                faults.append("it only takes reads (a standby, or default_transaction_read_only)")
            if server.encoding != "UTF8":
                faults.append(f"its encoding is {server.encoding}, expected UTF8")
            here = set(inspect(connection).get_table_names())
            for part in kept:
                said, wrong = _examined(connection, part, here, may_create=server.may_create)
                tables.append(said)
                faults += wrong
    except (SQLAlchemyError, OSError) as exc:
        return Finding(_NAME, "fail", f"the database of postgres.url does not answer: {postgres.why(exc)}")
    finally:
        database.dispose()
    if faults:
        return Finding(_NAME, "fail", f"the database of postgres.url, as {server.account}: {'; '.join(faults)}")
    return Finding(_NAME, "ok", f"{server.version}: {', '.join(tables)}")


def _examined(
    connection: Connection, part: VersionedSchema, here: set[str], *, may_create: bool
) -> tuple[str, list[str]]:
    """Return a description of the tables, and their faults."""
    wanted = {table.name for table in part.shared}
    tables = {"tables": sorted(wanted & here)}
    faults = [f"{right} is missing" for right in connection.execute(_LACKING, tables).scalars()]
    if not wanted <= here and not may_create:
        faults.append(f"tables of {part.what} have to be made, and CREATE on the schema is missing")
    if faults or part.versions.name not in here:
        return f"tables of {part.what} will be made", faults
    version = connection.execute(select(func.max(part.versions.c.version))).scalar() or part.version
    said = f"tables of {part.what} have version {version}"
    if version > part.version:
        faults.append(f"{said}, expected {part.version} at most: update this gateway")
    elif version < part.version:
        said += f", will have {part.version}"
        if not connection.execute(_OWNS, tables).scalar():
            faults.append(f"{said}, for which the account has to own them")
    return said, faults
