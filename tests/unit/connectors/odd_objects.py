"""A bucket with objects of impossible times and sizes, beside one that is right: the script of a
`ScriptedS3`. All that are shown have the bytes DATA."""

from __future__ import annotations

import re

from connectors.bounds import MAX_TIME_S
from tests.unit.connectors.scripted_s3 import MODIFIED, Answer, Request, listing, ranged

DATA = b"odd"
ODD = {  # name -> (LastModified of a listing, Last-Modified of a HEAD, seconds)
    "early": ("0001-01-01T00:00:00Z", "Mon, 01 Jan 0001 00:00:00 GMT", -MAX_TIME_S),
    "late": ("9999-12-31T23:59:59Z", "Fri, 31 Dec 9999 23:59:59 GMT", MAX_TIME_S),
    "later": ("10000-01-01T00:00:00Z", "Sat, 01 Jan 10000 00:00:00 GMT", 0),
    "latest": ("never", "Sat, 01 Jan 99999999999999999999 00:00:00 GMT", 0),
    "none": ("", "", 0),
    "past": ("1969-12-31T23:59:59.9Z", "Wed, 31 Dec 1969 23:59:59 GMT", -1),
}
SIZES = {"huge": str(1 << 63), "negative": "-1", "huger": "9" * 5000}


def odd_script(request: Request) -> Answer:
    name = request.target.partition("?")[0].removeprefix("/bucket").removeprefix("/")
    if request.method == "GET" and name:
        answer = ranged(request, DATA, "e")
        answer.headers["Last-Modified"] = ODD[name][1] if name in ODD else MODIFIED
        return answer
    if request.method == "GET":
        return odd_listing() if re.search("prefix=(&|$)", request.target) else listing()
    if name in ODD:
        return Answer(headers={"Last-Modified": ODD[name][1], "ETag": '"e"', "Content-Length": "3"})
    size = SIZES.get(name, "3")
    return Answer(headers={"Last-Modified": MODIFIED, "ETag": '"e"', "Content-Length": size})


def odd_listing() -> Answer:
    items = [(name, time, "3") for name, (time, _, _) in ODD.items()]
    items += [(name, "2026-11-21T09:32:14Z", size) for name, size in SIZES.items()]
    items.append(("right", "2026-11-21T09:32:14Z", "3"))
    text = "".join(
        f"<Contents><Key>{name}</Key><LastModified>{time}</LastModified><ETag>e</ETag>"
        f"<Size>{size}</Size></Contents>"
        for name, time, size in sorted(items)
    )
    return Answer(body=f"<ListBucketResult>{text}</ListBucketResult>".encode())
