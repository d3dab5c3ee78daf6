"""An attention goes in, the name of the mistake comes out."""

from clearhead.checking.check import check
from clearhead.checking.contract import Contract
from clearhead.checking.report import Finding, Report
from clearhead.checking.words import explanation

__all__ = ["Contract", "Finding", "Report", "check", "explanation"]
