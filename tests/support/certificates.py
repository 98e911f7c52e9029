"""Certificates of a test authority as PEM files: of servers and of a client. Imports nothing of the package."""

from __future__ import annotations

from pathlib import Path

import trustme


class CertificateFiles:
    """Certificates as PEM files: of a server on localhost, of a client, and of their authority."""

    def __init__(self, folder: Path) -> None:
        authority, untrusted_authority = trustme.CA(), trustme.CA()
        server, client = authority.issue_cert("localhost"), authority.issue_cert("client@example.org")
        wrong_host = authority.issue_cert("elsewhere.example.org")
        self.authority, self.untrusted_authority = folder / "authority.pem", folder / "stranger.pem"
        authority.cert_pem.write_to_path(self.authority)
        untrusted_authority.cert_pem.write_to_path(self.untrusted_authority)
        self.cert, self.key = self._write(folder, "server", server)
        self.client_cert, self.client_key = self._write(folder, "client", client)
        self.wrong_host_cert, self.wrong_host_key = self._write(folder, "elsewhere", wrong_host)

    @staticmethod
    def _write(folder: Path, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return cert, key
