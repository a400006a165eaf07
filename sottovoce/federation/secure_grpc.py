"""gRPC as members use it: modules import `grpc` from here, so that it speaks TLS 1.3 only.

gRPC reads its cipher suites when it is loaded, and no later. TLS 1.3 has suites of its own; the one that is left to
TLS 1.2 is for RSA keys, which no member has, so that no handshake of TLS 1.2 succeeds.
"""

from __future__ import annotations

import os
import sys

from sottovoce.errors import SottovoceError

SUITES = "ECDHE-RSA-AES256-GCM-SHA384"

if "grpc" in sys.modules and os.environ.get("GRPC_SSL_CIPHER_SUITES") != SUITES:
    raise SottovoceError(
        "this process has loaded gRPC with other settings; links between members speak TLS 1.3 only; "
        "import sottovoce.federation.secure_grpc before grpc"
    )
os.environ["GRPC_SSL_CIPHER_SUITES"] = SUITES
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: E402

__all__ = ["grpc"]
