"""Somebody's own attention goes in, the name of the mistake comes out."""

from clearhead.conformance.checking import check
from clearhead.conformance.contract import Contract
from clearhead.conformance.report import Finding, Report

__all__ = ["Contract", "Finding", "Report", "check"]
