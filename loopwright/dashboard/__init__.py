"""The dashboard: server-rendered pages with plain forms, and one script that keeps a run's page live."""
