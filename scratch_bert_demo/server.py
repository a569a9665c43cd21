"""Serves the page to this machine only, without anything from other servers."""

import re
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from .environment import SERVER_NAME, gr, without_proxies


CSS = Path(__file__).with_name("page.css")
LOCAL_NAMES = ["127.0.0.1", "localhost"]  # of this machine, also through a tunnel such as ssh -L


def serve(page: gr.Blocks, port: int | None = None, inbrowser: bool = False, host: str | None = "127.0.0.1") -> str:
    """Serve the page from a background thread and return its address. Raises `OSError` if the port is taken.

    `port` defaults to the first free one from 7860 on; if `host` is None, GRADIO_SERVER_NAME sets it, as in a Space.
    On this machine, requests must name a local host: others come from a site that has rebound its name to ours.
    """
    host = host or SERVER_NAME
    names = LOCAL_NAMES if host in LOCAL_NAMES else ["*"]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=names)]
    middleware += [Middleware(OwnRequests, local=names == LOCAL_NAMES), Middleware(WithoutOutsideResources)]
    try:
        with without_proxies():  # Gradio asks its own server whether it is ready
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                share=False,
                ssr_mode=False,
                quiet=True,
                show_error=True,  # to programs, too
                prevent_thread_lock=True,
                footer_links=[],
                theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
                css_paths=CSS,
                app_kwargs={"middleware": middleware},
            )
    except (OSError, OverflowError) as error:  # Gradio's message names its variables
        ports = f"The port {port} is" if port is not None else "The ports from 7860 on are"
        raise OSError(f"{ports} in use, or not allowed for this user: choose another one.") from error
    if inbrowser:
        webbrowser.open(address)
    return address


class OwnRequests(BaseHTTPMiddleware):
    """Refuses what the page does not ask for, such as Gradio's uploads, which would be stored; on this machine, also
    what the pages of other sites ask for."""

    API = re.compile("/gradio_api/(api|app_id|call|cancel|heartbeat|info|queue|reset|run|startup-events)(/|$)")

    def __init__(self, app: ASGIApp, local: bool):
        super().__init__(app)
        self.local = local

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        path, origin = request.url.path, request.headers.get("origin")
        is_page = request.method in ("GET", "HEAD") and not path.startswith(("/gradio_api/", "/monitoring"))
        is_foreign = self.local and origin and urlsplit(origin).netloc != request.headers["host"]
        if is_foreign or not (is_page or self.API.match(path)):
            return Response("Refused: the page makes no such request.", 403)
        return await call_next(request)


class WithoutOutsideResources(BaseHTTPMiddleware):
    """Removes external scripts and fonts from Gradio's page, and forbids others by a security policy."""

    OUTSIDE = re.compile(rb"<(script|link)[^>]*\bhttps?://[^>]*>(\s*</script>)?")
    POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        if "text/html" not in response.headers.get("content-type", ""):
            return response
        body = self.OUTSIDE.sub(b"", b"".join([chunk async for chunk in response.body_iterator]))
        headers = {**response.headers, "content-length": str(len(body)), "content-security-policy": self.POLICY}
        return Response(body, response.status_code, headers)
