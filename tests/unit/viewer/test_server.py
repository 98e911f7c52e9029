"""Tests of the answers over HTTP: whom they are given to, with what headers, and how mistakes are said."""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from saved_samples import SPAN, TRACE, append, sample_line, span_line
from starlette.testclient import TestClient

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.exports import PAGE_FILES
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.profile_messages import ProfileDecoder
from splunk_profiler.viewer.server import listen, make_app, own_origins

PATHS = ["/", *(f"/{name}" for name in PAGE_FILES), "/api/overview", "/api/flame?value=wall", "/nothing"]


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    (tmp_path / "logs.jsonl").write_text(sample_line() + sample_line(service="billing"), "utf-8")
    app = make_app(Answers(LiveFiles(tmp_path)), own_origins("127.0.0.1", 8000, ["profiles.example"]))
    return TestClient(app, base_url="http://127.0.0.1:8000")


def weights(packed: str) -> list[float]:
    """Return a column of weights of frames."""
    return [weight for (weight,) in struct.iter_unpack("<d", base64.b64decode(packed))]


def get(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_strict_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "Profiles.Example:8000"])
def test_its_own_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/overview", headers={"host": host}).status_code == 200
    assert client.get("/", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST", "[::1]"])
def test_its_own_names_are_bare_on_the_usual_port(tmp_path: Path, host: str) -> None:
    (tmp_path / "logs.jsonl").touch()
    client = TestClient(make_app(Answers(LiveFiles(tmp_path)), own_origins("127.0.0.1", 80, [])))
    for name in (host, f"{host}:80"):
        assert client.get("/", headers={"host": name, "origin": f"http://{host}"}).status_code == 200
    assert client.get("/", headers={"host": host, "origin": f"https://{host}"}).status_code == 403
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1:8001", "127.0.0.1", ""])
def test_other_names_are_refused(client: TestClient, host: str) -> None:
    answer = client.get("/api/overview", headers={"host": host})
    assert answer.status_code == 403
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8000", "http://127.0.0.1:9"])
def test_pages_of_other_origins_are_refused(client: TestClient, origin: str) -> None:
    assert client.get("/api/overview", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize(
    "query",
    [
        "since=soon",
        "since=-1",
        f"until={1 << 63}",
        f"until={'9' * 5000}",
        "f.colour=red",
        "compare=size",
        "compare=time&b.since=soon",
    ],
)
def test_a_wrong_selection_is_explained(client: TestClient, query: str) -> None:
    answer = client.get(f"/api/flame?value=wall&{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_selection_is_in_the_query(client: TestClient) -> None:
    assert get(client, "/api/flame?value=samples")["total"] == 2
    assert get(client, "/api/flame?value=samples&f.service=shop")["total"] == 1
    assert get(client, "/api/flame?value=samples&f.service=shop&f.service=billing")["total"] == 2
    assert get(client, "/api/flame?value=samples&until=5000000000")["total"] == 0
    assert get(client, "/api/timeline?value=samples&facet=service")["series"][0][0] == "shop"
    assert get(client, "/api/top?value=samples&search=RANK")["rows"] == [["shop.rank", "/srv/shop.py", 7, 1, 2, 2]]


def test_a_facet_and_a_text_to_search_are_in_the_query(client: TestClient) -> None:
    whole = get(client, "/api/facets?value=samples")
    assert whole["facets"].keys() == whole["more"].keys() > {"service", "trace"}
    assert set(whole["more"].values()) == {0}
    found = get(client, "/api/facets?value=samples&f.service=shop&facet=service&search=BILL")
    assert (found["facets"], found["more"]) == ({"service": [["billing", 1]]}, {"service": 0})
    assert get(client, f"/api/facets?value=samples&facet=trace&search={TRACE}")["facets"]["trace"] == [[TRACE, 2]]
    assert client.get("/api/facets?value=samples&facet=colour").json() == {"error": "there is no facet colour"}


def test_a_baseline_and_a_function_are_in_the_query(client: TestClient) -> None:
    answer = get(client, "/api/flame?value=samples&f.service=shop&compare=share&b.f.service=billing")
    assert (answer["total"], answer["before"]) == (1, 1)
    assert weights(answer["frames"]["before"]) == [1, 1]
    rows = get(client, "/api/top?value=samples&f.service=shop&compare=share&b.f.service=billing")["rows"]
    assert rows == [["shop.rank", "/srv/shop.py", 7, 1, 1, 1, 1, 1]]
    answer = get(client, "/api/top?value=samples&compare=share&b.f.service=billing")
    assert (answer["gone"], get(client, "/api/top?value=samples")["gone"]) == ([0, 0], [0, 0])
    answer = get(client, "/api/top?value=samples&f.service=none&compare=time&b.f.service=billing&gone=1&search=rank")
    assert (answer["gone"], answer["rows"]) == ([1, 1], [["shop.rank", "/srv/shop.py", 7, 1, 0, 0, 1, 1]])
    assert get(client, "/api/top?value=samples&compare=time&b.f.service=billing&gone=1")["rows"] == []
    assert get(client, "/api/flame?value=samples&compare=time&b.until=5000000000")["before"] == 0
    assert get(client, "/api/flame?value=samples&function=shop.rank&file=/srv/shop.py")["total"] == 2
    assert get(client, "/api/flame?value=samples&function=shop.rank&file=/elsewhere.py")["total"] == 0


def test_a_baseline_is_scaled_to_as_many_requests(client: TestClient, tmp_path: Path) -> None:
    query = "/api/flame?value=samples&f.service=shop&compare=requests&b.f.service=billing"
    assert "no requests of one of the two were received" in client.get(query).json()["error"]
    for service, requests in (("shop", 3), ("billing", 1)):
        for number in range(requests):
            root = span_line("GET /", f"{service:a>8.8}{number:08x}", times_ns=(10, 50), service=service)
            inner = span_line("query", f"{number:016x}", f"{service:a>8.8}{number:08x}", (20, 30), service=service)
            append(tmp_path / "traces.jsonl", root + inner)
    answer = get(client, query)
    assert (answer["total"], answer["before"]) == (1, 3)
    swapped = "value=samples&f.service=billing&compare=requests&b.f.service=shop"
    before = get(client, f"/api/flame?{swapped}")["frames"]["before"]
    assert weights(before) == [1, 1]  # of a third of a sample: nothing is new
    assert get(client, f"/api/top?{swapped}")["rows"] == [["shop.rank", "/srv/shop.py", 7, 1, 1, 1, 1, 1]]
    assert "no requests" in client.get(f"{query}&since=11").json()["error"]  # they have begun before
    refused = client.get(f"{query}&f.thread=main").json()["error"]
    assert refused == "requests are counted by service, version, endpoint and trace: remove the filter by thread"
    assert "no requests" in client.get(f"{query}&f.endpoint=missing").json()["error"]


def test_a_trace_has_its_spans_and_what_was_sampled_in_each(client: TestClient, tmp_path: Path) -> None:
    root = "aaaaaaaaaaaaaaaa"
    append(tmp_path / "traces.jsonl", span_line("GET /", root, times_ns=(10, 50), host_stacks=("q83vEg==",)))
    append(tmp_path / "traces.jsonl", span_line("rank", SPAN, parent=root, times_ns=(20, 40)))
    append(tmp_path / "logs.jsonl", sample_line(span="bbbbbbbbbbbbbbbb"))
    answer = get(client, f"/api/trace?value=samples&f.span_id={SPAN}&trace={TRACE}")  # all rows keep their weights
    assert [answer[name] for name in ("spans", "duration", "rest", "note")] == [2, 40, 1, ""]
    assert answer["rows"] == [
        [root, 0, "GET /", "unknown service", 0, 40, 0, ["q83vEg=="]],
        [SPAN, 1, "rank", "unknown service", 10, 20, 2, []],
    ]
    assert get(client, f"/api/flame?value=samples&f.trace={TRACE}&f.span_id={SPAN}")["total"] == 2
    assert get(client, "/api/trace?value=samples&trace=0")["rows"] == []


def test_source_is_of_files_of_python_that_are_in_the_profiles(client: TestClient, tmp_path: Path) -> None:
    code, secret = tmp_path / "shop.py", tmp_path / "shadow"
    for file in (code, secret):
        file.write_text("".join(f"line {number}\n" for number in range(1, 30)), "utf-8")
        append(tmp_path / "logs.jsonl", sample_line(f"own.{file.stem}({file}:7)", f"own.{file.stem}({file}:9)"))
    answer = get(client, f"/api/source?value=samples&function=own.shop&file={code}")
    assert answer["rows"][0] == [3, "line 3", 0, 0]
    assert [row for row in answer["rows"] if row[3]] == [[7, "line 7", 1, 1], [9, "line 9", 0, 1]]
    assert answer["rows"][-1][0] == 13
    assert answer["isFound"]
    assert answer["total"] == 1  # of the stack, which has two of its lines
    hidden = get(client, f"/api/source?value=samples&function=own.shadow&file={secret}")
    assert hidden["rows"] == [[7, "", 1, 1], [9, "", 0, 1]]
    assert not hidden["isFound"]
    unknown = get(client, f"/api/source?value=samples&function=unknown&file={code}")
    assert (unknown["total"], unknown["rows"]) == (0, [])
    append(tmp_path / "logs.jsonl", sample_line("own.leaf(/leaf.py:1)", f"own.caller({code}:3)"))
    assert get(client, f"/api/source?value=samples&function=own.caller&file={code}")["total"] == 1


def test_source_has_the_weights_of_the_baseline(client: TestClient, tmp_path: Path) -> None:
    code = tmp_path / "shop.py"
    for line, service in ((7, "now"), (9, "now"), (9, "before"), (9, "before"), (11, "before")):
        append(tmp_path / "logs.jsonl", sample_line(f"own.shop({code}:{line})", service=service))
    compared = f"value=samples&f.service=now&b.f.service=before&function=own.shop&file={code}"
    answer = get(client, f"/api/source?{compared}&compare=time")
    assert answer["rows"] == [[7, "", 1, 1, 0, 0], [9, "", 1, 1, 2, 2], [11, "", 0, 0, 1, 1]]
    assert answer["total"] == 2
    by_total = get(client, f"/api/source?{compared}&compare=share")["rows"]
    assert by_total == [[7, "", 1, 1, 0, 0], [9, "", 1, 1, 1, 1], [11, "", 0, 0, 1, 1]]  # of 2/3 and 4/3
    code.write_text("".join(f"line {number}\n" for number in range(1, 30)), "utf-8")
    rows = get(client, f"/api/source?{compared}&compare=time")["rows"]
    assert rows[0] == [3, "line 3", 0, 0, 0, 0]
    assert [row[0] for row in rows] == [*range(3, 16)]


def test_lines_of_source_are_those_that_python_counts(client: TestClient, tmp_path: Path) -> None:
    code = tmp_path / "shop.py"
    lines = ["# \x0c", "\x0b\x1c\x1d\x1e", "x = '\x85'", "# \u2028\u2029", "old\ris counted\r\nlike this", "last"]
    code.write_bytes("\n".join(lines).encode())
    append(tmp_path / "logs.jsonl", sample_line(f"own.shop({code}:7)"))
    rows = get(client, f"/api/source?value=samples&function=own.shop&file={code}")["rows"]
    shown = [*lines[:4], "old", "is counted", "like this", "last"]
    assert [text for _, text, *_ in rows] == shown[2:]
    assert [number for number, *_ in rows] == [3, 4, 5, 6, 7, 8]


def test_names_without_an_encoding_can_be_chosen(client: TestClient, tmp_path: Path) -> None:
    append(tmp_path / "logs.jsonl", sample_line("shop.a\ud800(/srv/\ud800.py:7)", service="b\udcff", state="\udcff"))
    append(tmp_path / "traces.jsonl", span_line("GET \udcff"))
    facets = get(client, "/api/facets?value=samples")["facets"]
    assert facets["service"][-1] == ["b\ufffd", 1]
    (endpoint,) = facets["endpoint"]
    assert endpoint == ["GET \ufffd", 3]
    chosen = {"f.service": "b\ufffd", "f.endpoint": "GET \ufffd", "function": "shop.a\ufffd", "file": "/srv/\ufffd.py"}
    assert get(client, f"/api/flame?value=samples&{urlencode(chosen)}")["total"] == 1
    assert client.get("/api/flame?value=samples&f.%ff=1").status_code == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_that_other_sites_make_are_refused(client: TestClient, site: str) -> None:
    for path in ("/api/export?format=html", "/api/overview"):
        assert client.get(path, headers={"sec-fetch-site": site}).status_code == 403
        for own in ("same-origin", "none"):
            assert client.get(path, headers={"sec-fetch-site": own}).status_code == 200
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page


@pytest.mark.parametrize("host", ["profiles.example", "profiles.example:8000"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_with_a_name_that_is_allowed_is_answered(client: TestClient, host: str, scheme: str) -> None:
    assert client.get("/", headers={"host": host, "origin": f"{scheme}://{host}"}).status_code == 200
    assert client.get("/", headers={"host": host, "origin": "https://evil.example"}).status_code == 403


def test_what_is_added_is_in_the_next_answer(client: TestClient, tmp_path: Path) -> None:
    before = get(client, "/api/overview")
    append(tmp_path / "logs.jsonl", sample_line())
    after = get(client, "/api/overview")
    assert (before["samples"], after["samples"]) == (2, 3)
    assert before["version"] != after["version"]


@pytest.mark.parametrize(
    "path", ["flame?", "top?", "facets?", "timeline?", "source?function=f&", f"trace?trace={TRACE}&"]
)
def test_each_answer_says_which_state_of_the_data_it_is_of(client: TestClient, tmp_path: Path, path: str) -> None:
    before = get(client, "/api/overview")["version"]
    assert get(client, f"/api/{path}value=samples")["version"] == before
    append(tmp_path / "logs.jsonl", sample_line())
    after = get(client, f"/api/{path}value=samples")["version"]
    assert get(client, "/api/overview")["version"] == after > before


class Growing(LiveFiles):
    """Files that get another sample before each answer."""

    def refresh(self) -> None:
        append(self.path / "logs.jsonl", sample_line())
        super().refresh()


def test_a_saved_page_is_of_one_state_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").touch()
    answers = Answers(Growing(tmp_path))
    page = answers.page(Selection("samples")).decode()
    saved = json.loads(re.findall('<script type="application/json" id="saved">(.*)</script>', page)[0])
    of_samples = saved["values"]["samples"]
    assert [of_samples[name]["total"] for name in ("flame", "inverted")] == [1, 1]
    parts = [of_samples[name] for name in ("flame", "inverted", "facets")]
    parts += [*of_samples["top"].values(), *of_samples["timeline"].values()]
    assert {each["version"] for each in parts} == {saved["overview"]["version"]}
    assert [answers.overview()["samples"] for _ in range(2)] == [2, 3]


@pytest.mark.parametrize("follows", [True, False])
def test_the_overview_says_if_what_is_added_appears(tmp_path: Path, follows: bool) -> None:
    (tmp_path / "logs.jsonl").touch()
    source = LiveFiles(tmp_path)
    source.follows = follows
    app = make_app(Answers(source), own_origins("127.0.0.1", 8000, []))
    assert get(TestClient(app, base_url="http://127.0.0.1:8000"), "/api/overview")["follows"] is follows


def test_files_that_disappear_are_an_error_that_says_so(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").unlink()
    answer = client.get("/api/overview")
    assert answer.status_code == 503  # the next may succeed
    assert "holds no .jsonl or .json or .pprof or .pb.gz files" in answer.json()["error"]


@pytest.mark.parametrize("form", ["folded", "speedscope", "pprof", "html"])
def test_exports_are_files(client: TestClient, form: str) -> None:
    answer = client.get(f"/api/export?value=samples&format={form}")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].startswith('attachment; filename="profile.')
    assert answer.content


def test_an_export_is_cut_at_the_function_as_the_graph_is(client: TestClient, tmp_path: Path) -> None:
    calls = ("a.leaf(/a.py:3)", "a.twice(/a.py:2)", "a.twice(/a.py:2)", "a.main(/a.py:1)")
    append(tmp_path / "logs.jsonl", sample_line(*calls))

    def folded(query: str) -> list[str]:
        return str(client.get(f"/api/export?value=samples&format=folded&{query}").text).splitlines()

    assert folded("f.service=shop") == ["a.main;a.twice;a.twice;a.leaf 1", "shop.rank 1"]
    assert folded("function=a.twice&file=/a.py") == ["a.twice;a.twice;a.leaf 1"]
    assert folded("function=a.twice&file=/a.py&inverted=1") == ["a.main;a.twice 1"]
    assert folded("function=missing&file=/a.py") == []


def test_the_baseline_of_a_comparison_is_a_file_of_its_own(client: TestClient) -> None:
    query = (
        "/api/export?value=samples&format=pprof&since=4000000000&until=9000000000&f.service=shop&b.f.service=billing"
    )
    profiles = {}
    for more in ("", "&baseline=1"):
        answer = client.get(query + more)
        (name,) = re.findall('filename="(.*)"', answer.headers["content-disposition"])
        profiles[name] = ProfileDecoder().decode(answer.content)
    assert profiles.keys() == {"profile.pprof", "baseline.pprof"}
    assert [(each.time_nanos, each.duration_nanos) for each in profiles.values()] == [
        (4_000_000_000, 5_000_000_000),
        (5_000_000_000, 1),
    ]


def test_an_unknown_format_is_explained(client: TestClient) -> None:
    assert "folded, speedscope, pprof or html" in client.get("/api/export?format=png").json()["error"]


def test_a_name_to_listen_on_is_known_in_any_case() -> None:
    assert own_origins("Profiles.Example", 8000, [])["profiles.example:8000"] == {"http://profiles.example:8000"}


def test_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
