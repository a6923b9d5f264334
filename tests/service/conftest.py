from tests.postgres import database, pg_server, urls

__all__ = ["database", "pg_server", "urls"]
