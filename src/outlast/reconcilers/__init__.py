"""Periodic repairs: a driver, and a table with one row each. They finish what a crash left, or time made true."""

from outlast.reconcilers.driver import Reconcilers
from outlast.reconcilers.table import ROWS, Row, rows_for

__all__ = ["ROWS", "Reconcilers", "Row", "rows_for"]
