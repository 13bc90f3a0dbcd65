"""Where a plan comes from: a file, a flag's text, or the default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from epp.config.serve import ServeSettings
from epp.config.text_file import read_file

from .default import default_config
from .entries import STABLE_ONLY, Options
from .live import Built, build
from .plan import Plan
from .resolve import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """At most one of `file` and `text` is given."""

    file: Path | None = None
    text: str | None = None
    default: bytes = default_config()
    options: Options = STABLE_ONLY

    @classmethod
    def of(cls, settings: ServeSettings) -> Self:
        return cls(
            file=settings.config_file,
            text=settings.config_text,
            default=default_config(
                settings.split,
                settings.split_threshold_tokens,
                endpoints=settings.max_endpoints,
                prefillers=settings.prefill_candidates,
            ),
            options=Options(allow_experimental=settings.allow_experimental_plugins),
        )

    @property
    def name(self) -> str:
        """As errors say it."""
        if self.file is not None:
            return str(self.file)
        return "default" if self.text is None else "--config-text"

    def read(self) -> bytes:
        """Raises ConfigError for a file that cannot be read."""
        if self.file is not None:
            return read_file(self.file)
        return self.default if self.text is None else self.text.encode()

    def plan(self, text: bytes) -> Plan:
        """Raises ConfigError with the place of what is wrong."""
        return resolve(text, self.name, self.options)

    def built(self, text: bytes, earlier: Built | None = None) -> Built:
        """The same with its plugins; those that did not change are taken from `earlier`."""
        return build(self.plan(text), earlier)
