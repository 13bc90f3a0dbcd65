"""What a sidecar is told about certificates: as a server, towards its engine, and on legs."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .tls import TlsFiles

Name = Annotated[str, Field(min_length=1, max_length=253)]


class TlsSettings(BaseModel):
    """Every file is read again when it changes. Scheme and trust are said here, by no header."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_cert_file: Path | None = None
    """Certificate chain of this sidecar, whose ports then speak TLS only."""
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None
    """Who signs the certificates that clients, sidecars with legs as well, must show; None asks for
    none."""

    engine_tls_ca_file: Path | None = None
    """Who signs the certificate of an engine behind `https`; None: whom the system trusts."""
    engine_tls_cert_file: Path | None = None
    """Certificate chain that the engine is shown."""
    engine_tls_key_file: Path | None = None
    engine_tls_name: Name | None = None
    """The name in the engine's certificate; None: the host of its URL."""
    engine_tls_insecure: bool = False
    """Believe whoever answers for the engine."""

    leg_tls: bool = False
    """Speak TLS to other sidecars."""
    leg_tls_ca_file: Path | None = None
    """Who signs their certificates; None: whom the system trusts."""
    leg_tls_cert_file: Path | None = None
    """Certificate chain that they are shown."""
    leg_tls_key_file: Path | None = None
    leg_tls_name: Name | None = None
    """The one name in all of their certificates; None: each proves its own address."""
    leg_tls_insecure: bool = False
    """Believe whoever answers at another sidecar's address."""

    @property
    def server_tls(self) -> TlsFiles | None:
        if self.tls_cert_file is None:
            return None
        return TlsFiles(cert=self.tls_cert_file, key=self.tls_key_file, ca=self.tls_client_ca_file)

    @property
    def engine_tls(self) -> TlsFiles:
        """For an engine behind `https`."""
        return TlsFiles(
            cert=self.engine_tls_cert_file,
            key=self.engine_tls_key_file,
            ca=self.engine_tls_ca_file,
            insecure=self.engine_tls_insecure,
            name=self.engine_tls_name,
        )

    @property
    def peer_tls(self) -> TlsFiles | None:
        if not self.leg_tls:
            return None
        return TlsFiles(
            cert=self.leg_tls_cert_file,
            key=self.leg_tls_key_file,
            ca=self.leg_tls_ca_file,
            insecure=self.leg_tls_insecure,
            name=self.leg_tls_name,
        )

    @model_validator(mode="after")
    def _certificates_fit(self) -> Self:
        for kind in ("tls", "engine_tls", "leg_tls"):
            cert, key = getattr(self, f"{kind}_cert_file"), getattr(self, f"{kind}_key_file")
            if (cert is None) != (key is None):
                flag = f"--{kind.replace('_', '-')}"
                raise ValueError(f"{flag}-cert-file and {flag}-key-file need each other")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("--tls-client-ca-file needs --tls-cert-file")
        for kind in ("engine_tls", "leg_tls"):
            if getattr(self, f"{kind}_insecure") and getattr(self, f"{kind}_ca_file") is not None:
                flag = f"--{kind.replace('_', '-')}"
                raise ValueError(f"{flag}-insecure believes anybody: leave {flag}-ca-file out")
        said = self.leg_tls_insecure or self.leg_tls_name or self.leg_tls_ca_file
        if (said or self.leg_tls_cert_file) and not self.leg_tls:
            raise ValueError("--leg-tls-… say how legs speak TLS: they need --leg-tls")
        return self
