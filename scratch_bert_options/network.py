"""Timeouts for huggingface_hub, which by itself waits 400 s for a silent server, and forever in a push."""

import math
import os
import re
import sys
import time
from functools import partial
from typing import Any

from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils._http import default_client_factory

from .errors import REMEDY, NetworkError


PATIENCE = 30  # seconds of failures, after which the network counts as absent
WRITING = 60  # seconds for an answer to what is sent
DROPPED = ("ReadError", "WriteError", "RemoteProtocolError")  # for which huggingface_hub does not turn to its cache


class _ClientFactory:
    """Makes clients that share what they know of failures. The functions of huggingface_hub that use them try again, or
    take the files that were downloaded before."""

    def __init__(self):
        self.failing_since = math.inf

    def __call__(self):
        if not re.match(r"https?://\w", constants.ENDPOINT):
            raise NetworkError(f"HF_ENDPOINT={constants.ENDPOINT} must begin with https://")
        if not re.fullmatch("[!-~]*", get_token() or ""):
            raise NetworkError("The token, from HF_TOKEN or a login, is malformed: copy it again.")
        try:
            client = default_client_factory()
        except Exception as error:
            names = ", ".join(name for name in os.environ if re.search("_proxy$|^ssl_cert_", name.lower()))
            raise NetworkError(f"The network cannot be used, as one of {names} is wrong: {error}") from error
        client.send = partial(self.send, client.send)
        return client

    def send(self, send, request: Any, **options):
        started, reading = time.monotonic(), request.method in ("GET", "HEAD")
        if reading and started - self.failing_since > PATIENCE:
            raise OfflineModeIsEnabled(f"{request.url.host} has failed for {PATIENCE} s: {REMEDY}")
        limit = constants.HF_HUB_DOWNLOAD_TIMEOUT if reading else WRITING
        request.extensions["timeout"] = dict.fromkeys(request.extensions["timeout"], limit)
        try:
            response = send(request, **options)
        except OfflineModeIsEnabled:  # by HF_HUB_OFFLINE
            raise
        except Exception as error:
            self.failing_since = min(self.failing_since, started)
            if reading and type(error).__name__ in DROPPED:
                httpx = sys.modules[type(request).__module__.partition(".")[0]]  # or httpx2
                raise httpx.ConnectError(str(error), request=request) from error
            raise
        self.failing_since = math.inf if response.status_code < 500 else min(self.failing_since, started)
        if "/api/" in request.url.path and "text/html" in response.headers.get("content-type", ""):
            raise NetworkError(f"{request.url.host} answers with a web page: log in to the network, check the proxy.")
        return response


def limit_waiting() -> None:
    """Let huggingface_hub, in this process, wait 10 s (HF_HUB_DOWNLOAD_TIMEOUT) for an answer to what it reads, 60 s to
    what it writes, and give up after half a minute of failures."""
    set_client_factory(_ClientFactory())
