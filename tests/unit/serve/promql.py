"""The names and labels of a PromQL expression: enough of its grammar to know which words are metrics."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_WORD = re.compile(r"(?<![\w.:$])([a-zA-Z_:][\w:]*)\s*(\(?)")
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"})
_FUNCTIONS = frozenset(
    {"absent", "avg", "count", "histogram_quantile", "increase", "max", "min", "rate", "sum", "topk"}
)


def parts(expression: str) -> tuple[set[str], set[str]]:
    """Metrics and labels an expression names.

    Raises:
        ValueError: Brackets do not match, or a function is unknown here.
    """
    text = _STRING.sub('""', expression)
    for opening, closing in ("()", "{}", "[]"):
        if text.count(opening) != text.count(closing):
            raise ValueError(f"{opening} and {closing} do not match in {expression}")
    labels = {
        each.partition("=")[0].rstrip("!").strip() for found in _MATCHERS.findall(text) for each in found.split(",")
    }
    text = _RANGE.sub("", _MATCHERS.sub("", text))
    labels |= {each.strip() for _, found in _GROUPING.findall(text) for each in found.split(",")}
    metrics = set()
    for word, bracket in _WORD.findall(_GROUPING.sub(" ", text)):
        if bracket:
            if word.lower() not in _OPERATORS and word not in _FUNCTIONS:
                raise ValueError(f"{word} is no function that is known here")
        elif word.lower() not in _OPERATORS:
            metrics.add(word)
    return metrics, labels - {""}
