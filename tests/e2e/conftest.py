from tests.postgres import pg_server, urls

__all__ = ["pg_server", "urls"]
