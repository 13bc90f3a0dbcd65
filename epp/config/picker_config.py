"""EndpointPickerConfig: the YAML that says how requests are scheduled, as the reference reads it.

    apiVersion: llm-d.ai/v1alpha1
    kind: EndpointPickerConfig
    plugins:
      - type: prefix-cache-scorer
      - type: queue-scorer
        name: queue
    schedulingProfiles:
      - name: default
        plugins:
          - pluginRef: prefix-cache-scorer
            weight: 3
          - pluginRef: queue

Fields and defaults are those of `apix/config/v1alpha1` of llm-d-router. This module knows the
document's shape only; `epp.request.plan` knows what its names may refer to.
"""

import json
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from . import located
from .located import Located
from .values import Seconds, Size

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
"""The second is the older group, still accepted."""


def _weight(value: float) -> float:
    if not isfinite(value) or value < 0.0:
        raise ValueError("must be a finite number of at least 0")
    return value


def _no_switch(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic wants it so
    return value


Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
OptionalName = Annotated[str, StringConstraints(max_length=253)]
"""Empty, as some charts write it, is none."""
Weight = Annotated[
    float,
    Field(strict=False),
    BeforeValidator(_no_switch),
    AfterValidator(_weight),
    WithJsonSchema({"type": "number", "minimum": 0}),
]
_OLD: Any = {"deprecated": True}
Duration = Annotated[Seconds, WithJsonSchema({"type": ["string", "number"]})]
Bytes = Annotated[Size, WithJsonSchema({"type": ["string", "integer"]})]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False, strict=True
    )

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class PluginEntry(_Part):
    """One plugin with its parameters."""

    type: Name = Field(description="Name that the plugin is registered under.")
    name: OptionalName = Field("", description="How others refer to it; default: its type.")
    parameters: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="Parameters of that type."
    )

    @property
    def reference(self) -> str:
        return self.name or self.type


class PluginRef(_Part):
    plugin_ref: Name = Field(description="Name of an entry of `plugins`.")


class ProfilePlugin(PluginRef):
    weight: Weight | None = Field(None, description="Of a scorer; default 1.")


class ProfileEntry(_Part):
    """Filters, scorers and a picker under one name, in the order to run."""

    name: Name
    plugins: list[ProfilePlugin] = Field(default_factory=list[ProfilePlugin], max_length=64)


class SourceEntry(PluginRef):
    extractors: list[PluginRef] = Field(default_factory=list[PluginRef], max_length=64)


class DataLayer(_Part):
    inject_defaults: bool = Field(True, description="Add the sources that plugins need.")
    sources: list[SourceEntry] = Field(default_factory=list[SourceEntry], max_length=64)
    discovery: PluginRef | None = None
    peer_discovery: PluginRef | None = None
    cross_replica_syncer_plugin_ref: OptionalName = ""
    cross_replica_sync_interval: Duration | None = None


class PriorityBand(_Part):
    priority: int | None = None
    max_bytes: Bytes | None = None
    max_requests: int | None = Field(None, ge=0)
    fairness_policy_ref: OptionalName = ""
    ordering_policy_ref: OptionalName = ""


class FlowControl(_Part):
    max_bytes: Bytes | None = None
    max_requests: int | None = Field(None, ge=0)
    default_request_ttl: Duration | None = Field(None, alias="defaultRequestTTL")
    no_endpoint_request_ttl: Duration | None = Field(None, alias="noEndpointRequestTTL")
    default_priority_band: PriorityBand | None = None
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: list[PriorityBand] = Field(default_factory=list[PriorityBand], max_length=64)
    usage_limit_policy_plugin_ref: OptionalName = ""
    saturation_detector: PluginRef | None = None
    enable_eviction: bool = False


class RequestHandler(_Part):
    parsers: list[PluginRef] = Field(default_factory=list[PluginRef], max_length=64)


class PickerConfig(_Part):
    """The whole document."""

    api_version: Literal["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    kind: Literal["EndpointPickerConfig"]
    metadata: dict[str, Any] | None = Field(None, description="Ignored; tools like to write it.")
    feature_gates: list[str] = Field(default_factory=list[str], max_length=64)
    plugins: list[PluginEntry] = Field(default_factory=list[PluginEntry], max_length=256)
    scheduling_profiles: list[ProfileEntry] = Field(
        default_factory=list[ProfileEntry], max_length=64
    )
    data_layer: DataLayer | None = None
    flow_control: FlowControl | None = None
    request_handler: RequestHandler | None = None
    saturation_detector: PluginRef | None = Field(None, json_schema_extra=_OLD)
    parser: PluginRef | None = Field(None, json_schema_extra=_OLD)


def parse(text: bytes, where: str) -> tuple[PickerConfig, Located]:
    """Read a document; `where` names it in errors. Raises ConfigError with all faults of shape."""
    file = located.read(text, where)
    return located.checked(PickerConfig, file), file


def json_schema() -> dict[str, Any]:
    """For editors: what `parse` accepts."""
    schema = PickerConfig.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def schema_text() -> str:
    """The text of docs/picker-config.schema.json."""
    return json.dumps(json_schema(), indent=2) + "\n"
