"""Searching for widths: the search space, the methods that decide, when they decide, and ``BitAllocator``."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from hwbmpq.deprecated import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from hwbmpq.search.allocator import BitAllocator as BitAllocator
    from hwbmpq.search.config import AllocationConfig as AllocationConfig
    from hwbmpq.search.decisions import Decision as Decision
    from hwbmpq.search.decisions import DecisionContext as DecisionContext
    from hwbmpq.search.decisions import Move as Move
    from hwbmpq.search.methods import Method as Method
    from hwbmpq.search.schedule import DecisionSchedule as DecisionSchedule
    from hwbmpq.search.space import SearchSpace as SearchSpace
    from hwbmpq.search.space import build_search_space as build_search_space
    from hwbmpq.search.space import default_choices as default_choices

__getattr__, __dir__, __all__ = _lazy_names(__name__)
