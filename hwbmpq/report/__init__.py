"""The numbers of plans and runs, ready to be drawn or written: no printing here."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from hwbmpq.report.accuracy import AccuracyProbe as AccuracyProbe
from hwbmpq.report.accuracy import AccuracySearch as AccuracySearch
from hwbmpq.report.run_report import Epoch as Epoch
from hwbmpq.report.run_report import Headline as Headline
from hwbmpq.report.run_report import RunReport as RunReport
from hwbmpq.report.run_report import WidthMove as WidthMove
from hwbmpq.report.run_report import build_report as build_report
from hwbmpq.report.run_report import read_facts as read_facts
from hwbmpq.report.run_report import report_on_run as report_on_run
from hwbmpq.report.trade_off import Control as Control
from hwbmpq.report.trade_off import TradeOff as TradeOff
from hwbmpq.report.trade_off import TradeOffPoint as TradeOffPoint
from hwbmpq.report.trade_off import find_trade_off as find_trade_off
from hwbmpq.report.values import Alternative as Alternative
from hwbmpq.report.values import CostReport as CostReport
from hwbmpq.report.values import LayerFacts as LayerFacts
from hwbmpq.report.values import LayerReport as LayerReport
from hwbmpq.report.values import Node as Node
from hwbmpq.report.values import Plan as Plan
from hwbmpq.report.values import RunFacts as RunFacts
from hwbmpq.values import Unquantized as Unquantized


def __getattr__(name: str) -> _ModuleType:
    """``html`` on first use: it brings matplotlib along."""
    if name == "html":
        return _import_module("hwbmpq.report.html")
    raise AttributeError(f"module 'hwbmpq.report' has no attribute {name!r}")
