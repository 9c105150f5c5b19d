"""``GET /docs``: Swagger UI, from files in a package, because a local server may have no internet."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response

from onceread.server.errors import ApiError

router = APIRouter(include_in_schema=False)

_PACKAGE = "fastapi_swagger.resources"
_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


@router.get("/docs")
async def read_docs(request: Request) -> HTMLResponse:
    """The API, to read and to try."""
    root = request.scope.get("root_path", "").rstrip("/")
    script, style, icon = (f"{root}/docs/{name}" for name in _FILES)
    return get_swagger_ui_html(
        openapi_url=f"{root}{request.app.openapi_url}",
        title=f"{request.app.title} API",
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
    )


@router.get("/docs/{name}")
def read_asset(name: str) -> Response:
    """A file of Swagger UI. Not a coroutine: it reads more than a megabyte from disk."""
    if name not in _FILES:
        raise ApiError(404, f"Unknown request URL: GET /docs/{name[:100]}.", code="unknown_url")
    content = (resources.files(_PACKAGE) / name).read_bytes()
    return Response(content, media_type=_FILES[name], headers={"Cache-Control": "max-age=86400"})
