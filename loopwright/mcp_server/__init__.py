"""Loopwright as tools for other agents: the MCP server, over HTTP and on stdio."""
