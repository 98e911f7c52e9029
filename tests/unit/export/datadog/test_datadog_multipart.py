"""The form of a profile for a Datadog agent: the event, its tags and the translated profile."""

from __future__ import annotations

import gzip
import json
import platform
from collections import Counter
from dataclasses import replace
from enum import Enum
from typing import Any

from datadog_form import ReadForm, read_form, sample_labels
from opentelemetry.sdk.resources import Resource
from profile_factory import large_profile, origin_in_shop, small_profile

from splunk_profiler.export.datadog.multipart import ProfileFormEncoder
from splunk_profiler.formats import code_provenance
from splunk_profiler.formats.datadog_pprof import translate_profile
from splunk_profiler.model import DataType, Frame, Stack
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.samples import Aggregate, InstrumentationSource, Profile


def formed(profile: Profile, **attributes: Any) -> tuple[ReadForm, dict[str, str]]:
    """Return the decoded form and its headers."""
    named = {name.replace("runtime_id", "runtime-id").replace("_", "."): value for name, value in attributes.items()}
    form = ProfileFormEncoder(lambda: Resource(named)).form(profile)
    headers = dict(form.headers)
    return read_form(headers["Content-Type"], form.body), headers


def test_whose_code_it_is_goes_with_the_profile() -> None:
    stack = Stack(
        (Frame("json", "loads", json.__file__, 1), Frame("shop", "serve", "/srv/shop.py", 1)), truncated=False
    )
    form, _ = formed(Profile(0, 1, 1, (Aggregate(stack, (), 1, 1, 1),)))
    assert json.loads(gzip.decompress(form.files["code-provenance.json"])) == {
        "v1": [
            {
                "kind": "standard library",
                "name": "stdlib",
                "version": platform.python_version(),
                "paths": [json.__file__],
            }
        ]
    }


def labelled_profile(*labels: tuple[str, str | int]) -> Profile:
    stack = Stack((Frame("shop", "serve", "shop.py", 1),), truncated=False)
    return Profile(0, 1, 1, (Aggregate(stack, labels, 1, 1, 1),))


def test_the_event_says_when_and_of_whom_the_profile_is() -> None:
    form, _ = formed(
        small_profile(),
        service_name="shop",
        deployment_environment="old",
        deployment_environment_name="prod",
        service_version="1.2",
        runtime_id="6f0d",
        host_name="web-1",
        process_pid=47,
    )
    assert {name: form.event[name] for name in ("version", "family", "start", "end", "attachments")} == {
        "version": "4",
        "family": "python",
        "start": "2026-05-28T20:26:40.000000Z",
        "end": "2026-05-28T20:26:50.000000Z",
        "attachments": ["auto.pprof", "code-provenance.json"],
    }
    version = form.tags.pop("profiler_version")
    assert version
    assert form.tags == {
        "service": "shop",
        "env": "prod",
        "version": "1.2",
        "runtime-id": "6f0d",
        "host": "web-1",
        "process_id": "47",
        "language": "python",
        "runtime": platform.python_implementation(),
        "runtime_version": platform.python_version(),
    }


def test_a_profile_of_selected_traces_has_a_tag_that_says_so() -> None:
    form, _ = formed(replace(small_profile(), source=InstrumentationSource.SNAPSHOT))
    assert form.tags["profiling.instrumentation.source"] == "snapshot"


def test_the_runtime_id_is_the_one_that_spans_have_on_their_resource() -> None:
    resource = Resource({"service.instance.id": "of the SDK"})
    identity = RuntimeId.new()
    form = ProfileFormEncoder(lambda: ResourceTagger(identity, on_spans=True).resource(resource)).form(small_profile())
    assert read_form(dict(form.headers)["Content-Type"], form.body).tags["runtime-id"] == identity.value


def test_a_profile_of_another_data_type_has_a_tag_that_says_so() -> None:
    form, _ = formed(replace(small_profile(), data_type=DataType.ALLOCATION))
    assert form.tags["profiling.data.type"] == "allocation"


def test_what_is_not_known_of_the_process_is_no_tag() -> None:
    form, headers = formed(small_profile(), service_name="")
    assert not form.tags.keys() & {"service", "env", "version", "runtime-id", "host", "process_id"}
    assert "Datadog-Container-ID" not in headers


def test_a_container_is_named_for_the_agent_which_knows_its_tags() -> None:
    _, headers = formed(small_profile(), container_id="0f3c")
    assert headers["Datadog-Container-ID"] == "0f3c"
    _, headers = formed(small_profile(), container_id="0f\r\nX: 1")
    assert headers["Datadog-Container-ID"] == "0fX: 1"


def test_a_value_cannot_begin_another_tag_or_line() -> None:
    form, _ = formed(small_profile(), service_name="shop,env:evil\nx" + "y" * 300, service_version="1,2")
    assert form.tags["service"].startswith("shop_env:evilxyyy")
    assert len(form.tags["service"]) == 200
    assert form.tags["version"] == "1_2"
    assert "env" not in form.tags


class Environment(str, Enum):
    LIVE = "live"


def test_attributes_that_are_no_plain_values_are_no_tags() -> None:
    odd: dict[str, Any] = {"service_version": None, "host_name": b"\xff", "container_id": None, "team": ("a", "b")}
    form, headers = formed(
        small_profile(),
        service_name=Environment.LIVE,
        deployment_environment_name=None,
        deployment_environment=1,
        **odd,
    )
    known = {"service": "live", "env": "1"}
    assert known.items() <= form.tags.items()
    assert not {"version", "host", "team"} & form.tags.keys()
    assert "Datadog-Container-ID" not in headers


def test_the_users_own_tags_go_with_the_profile() -> None:
    attributes: dict[str, Any] = {
        "service.name": "shop",
        "service.version": "1.2",
        "team": "shop",
        "region": "eu",
        "cloud.region": "eu-1",
        "replicas": 3,
        "process.command": "secret",
        "telemetry.sdk.name": "opentelemetry",
        "service.instance.id": "pod",
        "names": ("a", "b"),
        "a:b": "x,y:z",
    }
    tags = {"region": "us", "env": "prod", "service": "other", "language": "ruby", "lonely": "", "": "nothing"}
    form = ProfileFormEncoder(lambda: Resource(attributes), tags=tags).form(small_profile())
    found = read_form(dict(form.headers)["Content-Type"], form.body).tags
    own = {"team": "shop", "region": "us", "cloud.region": "eu-1", "replicas": "3", "a_b": "x_y:z", "lonely": ""}
    known = {"service": "shop", "version": "1.2", "env": "prod", "language": "python"}
    others = {"runtime", "runtime_version", "profiler_version"}
    assert {name: value for name, value in found.items() if name not in others} == {**own, **known}


def test_values_have_the_names_that_the_backend_knows() -> None:
    form, _ = formed(small_profile())
    texts = list(form.profile.string_table)
    assert [(texts[kind.type], texts[kind.unit]) for kind in form.profile.sample_type] == [
        ("wall-samples", "count"),
        ("wall-time", "nanoseconds"),
        ("cpu-time", "nanoseconds"),
        ("collections", "count"),
        ("gc", "nanoseconds"),
    ]
    assert [list(sample.value) for sample in form.profile.sample] == [
        [300, 3_000_400_000, 2_500_000_000, 0, 0],
        [100, 1_000_000_000, 500_000_000, 0, 0],
        [600, 5_999_600_000, 0, 0, 0],
        [0, 0, 0, 3, 36_000_000],
    ]


def test_labels_have_the_names_that_the_backend_knows_and_ids_are_numbers() -> None:
    known = labelled_profile(
        ("source.event.time", 1),
        ("source.event.period", 10),
        ("source.event.name", "timer"),
        ("thread.id", 7),
        ("thread.os.id", 8),
        ("thread.name", "worker"),
        ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("span_id", "00f067aa0ba902b7"),
        ("local_root_span_id", "ffffffffffffffff"),
        ("endpoint", "GET /items"),
        ("tenant", "acme"),
    )
    form, _ = formed(known)
    assert sample_labels(form.profile) == [
        {
            "source.event.name": "timer",
            "thread id": 7,
            "thread native id": 8,
            "thread name": "worker",
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span id": 0x00F067AA0BA902B7,
            "local root span id": -1,  # the same 64 bits
            "trace endpoint": "GET /items",
            "tenant": "acme",
        }
    ]


def test_others_are_let_in_while_a_large_profile_is_put_into_its_words() -> None:
    profile, pauses = large_profile(1000), Counter[str]()
    translate_profile(profile, lambda: pauses.update(["words"]))
    code_provenance.message(profile, origin_in_shop, lambda: pauses.update(["whose"]))
    assert pauses["words"] >= 10
    assert pauses["whose"] >= 10


def test_the_profile_that_is_sent_elsewhere_is_left_as_it_was() -> None:
    profile = small_profile()
    formed(profile)
    assert profile.aggregates[0].labels == small_profile().aggregates[0].labels
    assert replace(profile, aggregates=()) == replace(small_profile(), aggregates=())
