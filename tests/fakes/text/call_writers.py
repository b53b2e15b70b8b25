"""Calls as the chat templates of each family write them, for the parsers to read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
Writer = Callable[[Sequence[Call]], str]


def dumps(value: Any) -> str:
    """JSON as templates write it."""
    return json.dumps(value, ensure_ascii=False)


def _object(call: Call, name: str = "name", arguments: str = "arguments") -> str:
    return f"{{{dumps(name)}: {dumps(call[0])}, {dumps(arguments)}: {dumps(call[1])}}}"


def _listed(begin: str, end: str, separator: str = ", ", **keys: str) -> Writer:
    return lambda calls: f"{begin}[{separator.join(_object(call, **keys) for call in calls)}]{end}"


def _each(begin: str, end: str, separator: str = "\n", **keys: str) -> Writer:
    return lambda calls: separator.join(f"{begin}{_object(call, **keys)}{end}" for call in calls)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _function_tags(tag: str, parameter: str, plain: Callable[[Any], str]) -> Writer:
    def write(call: Call) -> str:
        name, arguments = call
        values = (parameter.format(key, plain(value)) for key, value in arguments.items())
        return f"<{tag}>\n<function={name}>\n{''.join(values)}</function>\n</{tag}>"

    return lambda calls: "\n".join(map(write, calls))


def _glm(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def _invoked(calls: Sequence[Call], tag: str, parameter: Callable[[str, Any], str]) -> str:
    return "".join(
        f'<{tag}invoke name="{name}">\n'
        + "".join(parameter(key, value) + "\n" for key, value in arguments.items())
        + f"</{tag}invoke>\n"
        for name, arguments in calls
    )


def _invokes(block: str) -> Writer:
    def parameter(key: str, value: Any) -> str:
        return f'<parameter name="{key}">{_plain(value)}</parameter>'

    return lambda calls: f"<{block}>\n{_invoked(calls, '', parameter)}</{block}>"


def _dsml(block: str, tag: str = "｜DSML｜") -> Writer:

    def parameter(key: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        return f'<{tag}parameter name="{key}" string="{kind}">{_plain(value)}</{tag}parameter>'

    return lambda calls: f"<{tag}{block}>\n{_invoked(calls, tag, parameter)}</{tag}{block}>"


def _step3(calls: Sequence[Call]) -> str:
    begin, end = "<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"
    blocks = [
        f'{begin}<steptml:invoke name="{name}">'
        + "".join(
            f'<steptml:parameter name="{key}">{_plain(value)}</steptml:parameter>'
            for key, value in arguments.items()
        )
        + f"</steptml:invoke>{end}"
        for name, arguments in calls
    ]
    return f"<｜tool_calls_begin｜>{''.join(blocks)}<｜tool_calls_end｜>"


def _deepseek_v3(calls: Sequence[Call]) -> str:
    blocks = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n"
        f"```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{blocks}<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: Sequence[Call]) -> str:
    blocks = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{blocks}<｜tool▁calls▁end｜>"


def _kimi(calls: Sequence[Call]) -> str:
    blocks = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}"
        f"<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{blocks}<|tool_calls_section_end|>"


def _harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        f"<|message|>{dumps(arguments)}<|call|>"
        for name, arguments in calls
    )


def _python(begin: str, separator: str, end: str) -> Writer:
    def write(call: Call) -> str:
        return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"

    return lambda calls: f"{begin}{separator.join(map(write, calls))}{end}"


def _gemma_value(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            inner = (f"{key}:{_gemma_value(item, quote)}" for key, item in value.items())
            return "{" + ",".join(inner) + "}"
        case list():
            return "[" + ",".join(_gemma_value(item, quote) for item in value) + "]"
        case bool():
            return dumps(value)
    return str(value)


def _gemma(begin: str, end: str, quote: str) -> Writer:
    return lambda calls: "".join(
        f"{begin}call:{name}{_gemma_value(arguments, quote)}{end}" for name, arguments in calls
    )


def _keyed(call: Call, sep: str, between: str, suffix: str, prefix: str = "") -> str:
    name, arguments = call

    def tag(word: str, end: str = "") -> str:
        return f"<{end}{prefix}{word}{suffix}>"

    values = (
        f"{tag('arg_key')}{key}{tag('arg_key', '/')}{between}"
        f"{tag('arg_value')}{_plain(value)}{tag('arg_value', '/')}{between}"
        for key, value in arguments.items()
    )
    return f"{tag('tool_call')}{name}{sep}{between}{''.join(values)}{tag('tool_call', '/')}"


def _hunyuan(calls: Sequence[Call]) -> str:
    blocks = "\n".join(_keyed(call, "<tool_sep>", "\n", "") for call in calls)
    return f"<tool_calls>\n{blocks}\n</tool_calls>"


def hunyuan_4(calls: Sequence[Call]) -> str:
    """The same without a separator, with a suffix in each tag."""
    blocks = "".join(_keyed(call, "", "", ":opensource") for call in calls)
    return f"<tool_calls:opensource>{blocks}</tool_calls:opensource>"


def _k2_horizon(calls: Sequence[Call]) -> str:
    blocks = "\n".join(_keyed(call, "", "\n", "", "ifm|") for call in calls)
    return f"<ifm|tool_calls>\n{blocks}\n</ifm|tool_calls>"


def _element(value: Any, prefix: str) -> str:
    match value:
        case dict():
            return "".join(_tagged(key, item, prefix) for key, item in value.items())
        case list():
            return "".join(_tagged("item", item, prefix) for item in value)
    return _plain(value)


def _tagged(name: str, value: Any, prefix: str) -> str:
    return f"{prefix}<{name}>{_element(value, prefix)}{prefix}</{name}>"


def _minimax_m3(calls: Sequence[Call]) -> str:
    prefix = "]<]minimax[>["
    blocks = "".join(
        f'{prefix}<invoke name="{name}">'
        + "".join(_tagged(key, value, prefix) for key, value in arguments.items())
        + f"{prefix}</invoke>\n"
        for name, arguments in calls
    )
    return f"{prefix}<tool_call>\n{blocks}{prefix}</tool_call>"


def _minicpm5(calls: Sequence[Call]) -> str:
    def value(given: Any) -> str:
        text = _plain(given)
        return f"<![CDATA[{text}]]>" if set("<&") & set(text) else text

    return "\n".join(
        f'<function name="{name}">'
        + "".join(f'<param name="{key}">{value(given)}</param>' for key, given in arguments.items())
        + "</function>"
        for name, arguments in calls
    )


def _plamo3(calls: Sequence[Call]) -> str:
    def tag(word: str, text: str) -> str:
        return f"<|plamo:begin_{word}:plamo|>{text}<|plamo:end_{word}:plamo|>"

    blocks = (
        tag(
            "tool_request",
            tag("tool_name", name)
            + tag("tool_arguments", f"<|plamo:constrain|>json<|plamo:msg|>{dumps(arguments)}"),
        )
        for name, arguments in calls
    )
    return tag("tool_requests", "".join(blocks))


def _kimi_k3(calls: Sequence[Call]) -> str:
    def element(name: str, attributes: str, text: str) -> str:
        return f"<|open|>{name}{attributes}<|sep|>{text}<|close|>{name}<|sep|>"

    def argument(key: str, value: Any) -> str:
        kinds = {str: "string", bool: "boolean", list: "array", dict: "object", type(None): "null"}
        kind = kinds.get(type(value), "number")
        return element("argument", f' key="{key}" type="{kind}"', _plain(value))

    blocks = (
        element(
            "call", f' tool="{name}" index="{i}"', "".join(map(argument, given, given.values()))
        )
        for i, (name, given) in enumerate(calls, start=1)
    )
    return element("tools", "", "".join(blocks))


def _muse_glimmer(calls: Sequence[Call]) -> str:
    def parameter(key: str, value: Any) -> str:
        return f'<atem:parameter name="{key}">{_plain(value)}</atem:parameter>'

    return "<|start|>assistant".join(
        f" to={call[0]}<|message|><atem:function_calls>\n"
        f"{_invoked([call], 'atem:', parameter)}</atem:function_calls><|eom|>"
        for call in calls
    )


def _inkling(calls: Sequence[Call]) -> str:
    return "<|message_model|>".join(
        f"{call[0]}<|content_invoke_tool_json|>{_object(call, arguments='args')}<|end_message|>"
        for call in calls
    )


#: By the first name of the format's row.
WRITERS: dict[str, Writer] = {
    "hermes": _each("<tool_call>\n", "\n</tool_call>"),
    "longcat": _each("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    "jamba": _listed("<tool_calls>", "</tool_calls>", ",\n  "),
    "granite": _listed("<|tool_call|>", ""),
    "granite-20b-fc": _each("<function_call> ", ""),
    "phi4_mini_json": _listed("functools", ""),
    "internlm": _each(
        "<|action_start|><|plugin|>\n", "<|action_end|>\n", "", arguments="parameters"
    ),
    "gigachat3": _each("<|function_call|>", ""),
    "cohere_command3": _listed(
        "<|START_ACTION|>", "<|END_ACTION|>", ",\n", name="tool_name", arguments="parameters"
    ),
    "apertus": lambda calls: (
        f"<|tools_prefix|>{dumps([{name: given} for name, given in calls])}<|tools_suffix|>"
    ),
    "xlam": _listed("```json\n", "\n```"),
    "llama3_json": _each("", "", "; ", arguments="parameters"),
    "mistral": _listed("[TOOL_CALLS] ", ""),
    "json": _listed("", "", arguments="parameters"),
    "deepseek_v3": _deepseek_v3,
    "deepseek_v31": _deepseek_v31,
    "kimi_k2": _kimi,
    "plamo3": _plamo3,
    "qwen3_coder": _function_tags("tool_call", "<parameter={}>\n{}\n</parameter>\n", _plain),
    "seed_oss": _function_tags("seed:tool_call", "<parameter={}>{}</parameter>\n", str),
    "glm45": _glm,
    "hy_v3": _hunyuan,
    "k2_horizon": _k2_horizon,
    "minimax_m2": _invokes("minimax:tool_call"),
    "minimax_m3": _minimax_m3,
    "minicpm5": _minicpm5,
    "dots": _invokes("dots_function_call"),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml("calls", "｜DSML｜ "),
    "step3": _step3,
    "pythonic": _python("[", ", ", "]"),
    "lfm2": _python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "olmo3": _python("<function_calls>\n", "\n", "\n</function_calls>"),
    "openai": _harmony,
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "kimi_k3": _kimi_k3,
    "muse_glimmer": _muse_glimmer,
    "inkling": _inkling,
}
