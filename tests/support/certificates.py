"""Certificates of a made-up authority as PEM files: of servers, and of a client. Imports nothing of the package."""

from __future__ import annotations

from pathlib import Path

import trustme


class Files:
    """Certificates as PEM files: of a server on localhost, of a client, and of their authority."""

    def __init__(self, folder: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        server, client = authority.issue_cert("localhost"), authority.issue_cert("client@example.org")
        elsewhere = authority.issue_cert("elsewhere.example.org")
        self.authority, self.stranger = folder / "authority.pem", folder / "stranger.pem"
        authority.cert_pem.write_to_path(self.authority)
        stranger.cert_pem.write_to_path(self.stranger)
        self.cert, self.key = self._write(folder, "server", server)
        self.client_cert, self.client_key = self._write(folder, "client", client)
        self.elsewhere_cert, self.elsewhere_key = self._write(folder, "elsewhere", elsewhere)

    @staticmethod
    def _write(folder: Path, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return cert, key
