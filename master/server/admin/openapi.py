"""The OpenAPI page of the admin API, generated from its routes and the types of their bodies."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import msgspec

import cachefs
from cachefs.core import admin as a
from master.server.admin.routes import ROUTES, Route

_REF: Final = "#/components/schemas/{name}"
_DESCRIPTION: Final = """\
What operators do, over HTTP. Where tokens are asked for: `Authorization: Bearer TOKEN`, with the
limits of the token. Failures are `application/problem+json`. Lists have pages: ask on with `next`
as `?next=` until it is null. Paths are UTF-8, where `%XX` stands for one byte and `%` is `%25`,
also in JSON; in a query they are encoded once more, as every value there. Bodies are
`application/json`; a POST or PATCH without that Content-Type is refused."""


@functools.cache
def page() -> dict[str, Any]:
    """Returns the document, OpenAPI 3.1."""
    bodies = [route.body for route in ROUTES if route.body is not None]
    answers = [kind for route in ROUTES for kind in route.answers.values() if kind is not None]
    kinds = [*dict.fromkeys([*bodies, *answers, a.Problem])]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CacheFS admin API",
            "version": cachefs.__version__,
            "description": _DESCRIPTION,
        },
        "servers": [{"url": a.API}],
        "security": [{}, {"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def text() -> bytes:
    """Returns the page as the server sends it. docs/openapi.json is a copy."""
    return msgspec.json.format(msgspec.json.encode(page()), indent=2) + b"\n"


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path or "/", {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [*_parameters(route.params, "path"), *_parameters(route.query, "query")],
        "responses": {str(status): _response(kind) for status, kind in route.answers.items()},
    }
    found["responses"]["default"] = _response(a.Problem, a.PROBLEM_TYPE, "It failed.")
    if route.keyed:
        found["parameters"].append(_KEY)
    if route.body is not None:
        content = {a.JSON_TYPE: {"schema": _ref(route.body)}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameters(kind: type[msgspec.Struct], where: str) -> Iterator[dict[str, Any]]:
    _, schemas = msgspec.json.schema_components([kind])
    schema = schemas[kind.__name__]
    for name, one in schema["properties"].items():
        one = _without_null(one)
        found = {"name": name, "in": where, "required": name in schema.get("required", ())}
        if "description" in one:
            found["description"] = one.pop("description")
        yield {**found, "schema": one}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter's schema without null: a caller leaves the parameter out instead."""
    found = dict(schema)
    choices = [one for one in found.pop("anyOf", ()) if one.get("type") != "null"]
    if choices:
        found.update(choices[0])
    if found.get("default", ...) is None:
        del found["default"]
    return found


_KEY: Final = {
    "name": a.KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "Drawn by the caller: the same again within a day answers the same job.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _response(
    kind: type[msgspec.Struct] | None, content_type: str = a.JSON_TYPE, text: str = "Done."
) -> dict[str, Any]:
    if kind is None:
        return {"description": text}
    return {"description": text, "content": {content_type: {"schema": _ref(kind)}}}
