"""The one client for every outgoing HTTP call that a user or a model can aim."""
