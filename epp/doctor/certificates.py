"""Certificates of pickers and sidecars: where they come from, how long they hold, and who would
verify one that is nobody's. Pure."""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from epp.control.kube.objects import SIDECAR

from .findings import Finding, Level
from .pools import Picker, pickers
from .shape import at, labels, rows, text
from .workloads import Container, Deployed, Workload, namespace_of, where

_found = partial(Finding, check="certificate")
SOON = timedelta(days=14)


@dataclass(frozen=True)
class _Source:
    """A certificate that a process is told to show, and the Secret that its file comes from."""

    workload: Workload
    container: Container
    path: str
    secret: str
    """Empty: its folder is no Secret's."""
    mounted: bool

    @property
    def where(self) -> str:
        return self.workload.of(self.container)


def secrets(deployed: Deployed) -> set[tuple[str, str]]:
    """Namespaces and names of the Secrets that hold certificates."""
    return {(one.workload.namespace, one.secret) for one in _sources(deployed) if one.secret}


def check_certificate(deployed: Deployed, now: datetime) -> Iterator[Finding]:
    """What is shown can be read, holds, and is renewed; nobody verifies a self-signed one."""
    for one in _sources(deployed):
        yield from _source(one, deployed, now)
    for picker in pickers(deployed):
        if "--cert-path" in picker.container.flags:
            if not picker.container.on("enable-cert-reload"):
                yield _found(
                    level=Level.WARNING,
                    where=picker.where,
                    what="a renewed certificate is read at the next start only",
                    fix="--enable-cert-reload",
                )
        else:
            yield from _verified(picker, deployed)


def _sources(deployed: Deployed) -> Iterator[_Source]:
    for picker in pickers(deployed):
        path = picker.container.flags.get("--cert-path", "")
        if path:
            yield _from(picker.workload, picker.container, f"{path}/tls.crt")
    for workload in deployed.workloads:
        sidecar = workload.container(SIDECAR)
        path = sidecar.flags.get("--tls-cert-file", "") if sidecar is not None else ""
        if sidecar is not None and path:
            yield _from(workload, sidecar, path)


def _from(workload: Workload, container: Container, path: str) -> _Source:
    file = PurePosixPath(path)
    for mount in rows(container.raw, "volumeMounts"):
        if not file.is_relative_to(text(mount, "mountPath") or "/-"):
            continue
        for volume in rows(workload.spec, "volumes"):
            if text(volume, "name") == text(mount, "name"):
                secret = text(volume, "secret", "secretName")
                return _Source(workload, container, path, secret, mounted=True)
    return _Source(workload, container, path, "", mounted=False)


def _source(one: _Source, deployed: Deployed, now: datetime) -> Iterator[Finding]:
    if not one.mounted:
        yield _found(
            level=Level.ERROR,
            where=one.where,
            what=f"nothing is mounted where its certificate should be: {one.path}",
            fix="mount the Secret of type kubernetes.io/tls there",
        )
        return
    secret = deployed.named("Secret", one.workload.namespace, one.secret)
    if secret is not None:
        yield from _held(secret, now)


def _held(secret: object, now: datetime) -> Iterator[Finding]:
    found: dict[str, object] = dict(secret) if isinstance(secret, dict) else {}
    place = where(found)
    try:
        shown = x509.load_pem_x509_certificate(_content(found, "tls.crt"))
        key = load_pem_private_key(_content(found, "tls.key"), password=None)
    except (ValueError, TypeError, binascii.Error) as error:
        yield _found(
            level=Level.ERROR,
            where=place,
            what=f"tls.crt and tls.key cannot be read: {error}",
            fix="a certificate and its key without a password, both PEM",
        )
        return
    if key.public_key() != shown.public_key():
        yield _found(
            level=Level.ERROR,
            where=place,
            what="tls.key is not the key of tls.crt",
            fix="write both at once, as they were made",
        )
    until = shown.not_valid_after_utc
    if until < now + SOON:
        over = until < now
        yield _found(
            level=Level.ERROR if over else Level.WARNING,
            where=place,
            what=f"the certificate {'is over since' if over else 'is over at'} {until:%Y-%m-%d}",
            fix="renew it, and let something renew it from then on",
        )


def _content(secret: object, name: str) -> bytes:
    """Raises ValueError."""
    plain = text(secret, "stringData", name)
    if plain:
        return plain.encode()
    return base64.b64decode(text(secret, "data", name), validate=True)


def _verified(picker: Picker, deployed: Deployed) -> Iterator[Finding]:
    """Who would verify a certificate that the picker makes for itself, or speak TLS to a port that
    does not."""
    tls = picker.container.on("secure-serving") is not False
    services = {
        text(one, "metadata", "name")
        for one in deployed.kinds("Service")
        if namespace_of(one) == picker.workload.namespace
        and picker.workload in deployed.selected(namespace_of(one), labels(one, "spec", "selector"))
    }
    for one in deployed.kinds("BackendTLSPolicy"):
        targets = {text(target, "name") for target in rows(one, "spec", "targetRefs")}
        if services & targets and namespace_of(one) == picker.workload.namespace:
            yield _wrong(where(one), verifies=tls)
    for one in deployed.kinds("DestinationRule"):
        if text(one, "spec", "host").partition(".")[0] not in services:
            continue
        mode = text(one, "spec", "trafficPolicy", "tls", "mode")
        skips = at(one, "spec", "trafficPolicy", "tls", "insecureSkipVerify") is True
        speaks = mode in {"SIMPLE", "MUTUAL", "ISTIO_MUTUAL"}
        if mode and speaks != tls:
            yield _wrong(where(one), verifies=False)
        elif speaks and not skips:
            yield _wrong(where(one), verifies=True)


def _wrong(place: str, *, verifies: bool) -> Finding:
    if verifies:
        return _found(
            level=Level.ERROR,
            where=place,
            what="the gateway verifies the picker's certificate, which the picker made itself",
            fix="--cert-path with a certificate that the gateway trusts, or verify nothing",
        )
    return _found(
        level=Level.ERROR,
        where=place,
        what="one side speaks TLS to the ext_proc port, the other one does not",
        fix="--secure-serving as the gateway speaks",
    )
