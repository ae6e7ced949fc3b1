"""Executions and flows as people and programs see them: plain data, encodable as JSON as it is.

The command line renders these views; an HTTP server and a dashboard render the same ones. Nothing here knows a
terminal, a route or a page.
"""
