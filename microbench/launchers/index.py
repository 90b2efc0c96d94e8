"""Rows picked from a table, or put or added into one, by an index on the device."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Index

_CHECKED = 64  # rows held against the reference: chosen by hand, not from data


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Index)
    index = device.randint(0, op.table, (op.rows,))
    table = device.randn(op.table, op.width, dtype=op.dtype)
    if op.kind == "gather":
        return Prepared(
            lambda: table.index_select(0, index),
            lambda: relative_error(table.index_select(0, index)[:_CHECKED], table[index[:_CHECKED]]),
        )
    given = device.randn(op.rows, op.width, dtype=op.dtype, scale=1e-3)
    if op.kind == "scatter":

        def put() -> float:
            table.index_copy_(0, index, given)
            only = torch.bincount(index, minlength=op.table)[index] == 1  # of equal indices any may win
            return relative_error(table[index[only]], given[only]) if bool(only.any()) else 0.0

        return Prepared(lambda: table.index_copy_(0, index, given), put)
    if op.kind == "scatter_add":

        def add() -> float:
            row = index[0]
            want = table[row].double() + given[index == row].double().sum(0)
            return relative_error(table.index_add_(0, index, given)[row], want)

        return Prepared(lambda: table.index_add_(0, index, given), add)
    raise IllegalCase(f"no launch for the kind {op.kind!r}")
