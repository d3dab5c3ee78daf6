"""An attention goes in, the name of the mistake comes out."""

from clearhead.checking.checking import check
from clearhead.checking.contract import Contract
from clearhead.checking.report import Finding, Report

__all__ = ["Contract", "Finding", "Report", "check"]
