"""The accounting of a sample stream, as a trainer reports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from srl.system.report import EdgeCount


def flow_counters(counts: Mapping[str, Any]) -> dict[str, int]:
    """The accounting of a sample stream as counters of a report."""
    counters = {}
    for unit, key in (("blocks", "blocks"), ("rows", "valid_rows")):
        account = counts[key]
        counters[f"{unit}_trained"] = int(account["trained"])
        counters[f"{unit}_in_flight"] = int(account["in_flight"])
        for reason, number in account["dropped"].items():
            counters[f"{unit}_dropped/{reason}"] = int(number)
    for length, number in counts["lengths"]["trained"].items():
        counters[f"lengths_trained/{length}"] = int(number)
    for reason, lengths in counts["lengths"]["dropped"].items():
        for length, number in lengths.items():
            counters[f"lengths_dropped/{reason}/{length}"] = int(number)
    counters["stragglers"] = int(counts["stragglers"])
    counters["messages_refused"] = sum(int(number) for number in counts["refused"].values())
    return counters


def sample_edge(counts: Mapping[str, Any]) -> EdgeCount:
    """The same as the consumer's count of the edge: what arrived was received or dropped, never both."""
    blocks = counts["blocks"]
    dropped = {reason: int(number) for reason, number in blocks["dropped"].items()}
    return EdgeCount(sent=0, received=int(blocks["produced"]) - sum(dropped.values()), dropped=dropped)
