"""The id of the process on the SDK's own providers, and in forked children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from command_line import ROOT
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from splunk_profiler.otel.runtime_id import INSTANCE_ID, RUNTIME_ID, ResourceTagger, RuntimeId

SHOP = {"service.name": "shop"}


class Service:
    """An application whose provider and tracer are older than the profiler."""

    def __init__(self, attributes: dict[str, str] | None = None) -> None:
        self.resource = Resource(attributes or SHOP, "https://example.org/schema")
        self.provider = TracerProvider(resource=self.resource, shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("old")

    def carried(self, tracer: str = "old") -> dict[str, Any]:
        """Return the resource attributes of a new span."""
        return attributes(self.provider.get_tracer(tracer).start_span("work"))

    def forget_tracers(self) -> None:
        """Imitate an older SDK, which lists no tracers and leaves resources alone in forked children."""
        vars(self.provider).pop("_tracers", None)
        vars(self.provider)["_update_resource"] = lambda _: None


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.resource.attributes)


def test_spans_of_old_and_new_tracers_carry_the_id_and_are_else_unchanged() -> None:
    service, identity = Service(), RuntimeId.new()
    ResourceTagger(identity, on_spans=True).attach(service.provider)
    assert UUID(identity.value).version == 4
    for tracer in ("old", "new"):
        assert service.carried(tracer) == {**SHOP, RUNTIME_ID: identity.value, INSTANCE_ID: identity.value}
    assert service.tracer.start_span("work").resource is service.provider.resource  # type: ignore[attr-defined]
    assert service.provider.resource.schema_url == "https://example.org/schema"


def test_the_applications_resource_object_is_left_alone() -> None:
    service = Service()
    before = service.resource.to_json()
    ResourceTagger(RuntimeId.new(), on_spans=True).attach(service.provider)
    assert service.resource.to_json() == before


@pytest.mark.parametrize("key", [RUNTIME_ID, INSTANCE_ID])
def test_what_the_application_says_of_itself_goes_first(key: str) -> None:
    service, identity = Service({**SHOP, key: "its own"}), RuntimeId.new()
    identified = ResourceTagger(identity, on_spans=True)
    identified.attach(service.provider)
    assert service.carried() == {**SHOP, RUNTIME_ID: identity.value, INSTANCE_ID: identity.value, key: "its own"}
    identified.detach()
    assert service.carried() == {**SHOP, key: "its own"}


def test_one_that_says_everything_keeps_its_resource() -> None:
    service = Service({**SHOP, RUNTIME_ID: "mine", INSTANCE_ID: "mine too"})
    identified = ResourceTagger(RuntimeId.new(), on_spans=True)
    identified.attach(service.provider)
    assert service.provider.resource is service.resource
    identified.detach()
    assert service.provider.resource is service.resource


def test_after_the_stop_new_spans_have_the_applications_resource_object() -> None:
    service = Service()
    identified = ResourceTagger(RuntimeId.new(), on_spans=True)
    identified.attach(service.provider)
    service.carried("new")
    identified.detach()
    for tracer in ("old", "new"):
        span: Any = service.provider.get_tracer(tracer).start_span("work")
        assert span.resource is service.resource
    identified.attach(service.provider)  # a late call from another thread
    assert service.provider.resource is service.resource


def test_a_life_after_a_stop_has_the_same_id() -> None:
    service, identity = Service(), RuntimeId.new()
    for _ in range(2):
        identified = ResourceTagger(identity, on_spans=True)
        identified.attach(service.provider)
        assert service.carried()[RUNTIME_ID] == identity.value
        identified.detach()


def test_meeting_a_provider_again_changes_nothing() -> None:
    service = Service()
    identified = ResourceTagger(RuntimeId.new(), on_spans=True)
    identified.attach(service.provider)
    resource = service.provider.resource
    identified.attach(service.provider)
    assert service.provider.resource is resource


def test_a_tracer_that_was_being_made_meanwhile_gets_it_at_the_next_sample() -> None:
    service, identity = Service(), RuntimeId.new()
    identified = ResourceTagger(identity, on_spans=True)
    identified.attach(service.provider)
    late: Any = service.provider.get_tracer("late")
    late.resource = service.resource
    identified.attach(service.provider)
    assert attributes(late.start_span("work"))[RUNTIME_ID] == identity.value


def _while_tagging(service: Service, act: Callable[[], None]) -> None:
    """Have `act` run when the resource of the service's tracer is about to be replaced."""

    class Watched(type(service.tracer)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "resource":
                act()
            super().__setattr__(name, value)

    service.tracer.__class__ = Watched


def test_once_the_provider_says_the_id_spans_of_all_its_tracers_have_it() -> None:
    service, seen = Service(), []
    _while_tagging(service, lambda: seen.append(service.provider.resource))
    ResourceTagger(RuntimeId.new(), on_spans=True).attach(service.provider)
    assert seen == [service.resource]


def test_resource_that_the_sdk_renews_meanwhile_in_a_forked_child_is_kept() -> None:
    service, identity = Service(), RuntimeId.new()
    renewed = service.resource.merge(Resource({INSTANCE_ID: "the SDK's"}))
    _while_tagging(service, lambda: setattr(service.provider, "_resource", renewed))
    identified = ResourceTagger(identity, on_spans=True)
    identified.attach(service.provider)
    assert service.provider.resource is renewed
    service.tracer.__class__ = type(service.provider.get_tracer("new"))
    identified.attach(service.provider)
    for tracer in ("old", "new"):
        assert service.carried(tracer) == {**SHOP, RUNTIME_ID: identity.value, INSTANCE_ID: "the SDK's"}


def test_fork_within_the_tagging_of_a_parent_leaves_no_tracer_untagged() -> None:
    service, parent = Service(), RuntimeId.new()
    service.provider.get_tracer("not reached")
    ResourceTagger(parent, on_spans=True).attach(service.provider)
    vars(service.provider)["_resource"] = service.resource
    child = parent.new_for_child()
    ResourceTagger(child, on_spans=True).attach(service.provider)
    for tracer in ("old", "not reached"):
        assert service.carried(tracer)[RUNTIME_ID] == child.value


def test_provider_that_replaces_another_carries_the_id_and_the_other_not() -> None:
    first, second, identity = Service(), Service(), RuntimeId.new()
    identified = ResourceTagger(identity, on_spans=True)
    identified.attach(first.provider)
    identified.attach(second.provider)
    assert first.provider.resource is first.resource
    assert second.carried()[RUNTIME_ID] == identity.value


@pytest.mark.parametrize("provider", [None, object()])
def test_what_is_no_provider_of_the_sdk_is_left_alone(provider: object) -> None:
    identified = ResourceTagger(RuntimeId.new(), on_spans=True)
    identified.attach(provider)
    identified.detach()


def test_a_forked_child_replaces_what_was_ours_and_nothing_else() -> None:
    service, parent = Service(), RuntimeId.new()
    ResourceTagger(parent, on_spans=True).attach(service.provider)
    child = parent.new_for_child().new_for_child()
    identified = ResourceTagger(child, on_spans=True)
    identified.attach(service.provider)
    assert service.carried() == {**SHOP, RUNTIME_ID: child.value, INSTANCE_ID: child.value}
    assert len({parent.value, child.value, *child.former_values}) == 3
    identified.detach()
    assert service.carried() == SHOP


def test_own_instance_id_is_not_settled_before_the_hook_of_the_sdk() -> None:
    service, parent = Service({**SHOP, INSTANCE_ID: "of the parent"}), RuntimeId.new()
    parents = ResourceTagger(parent, on_spans=False)
    parents.resource(service.provider.resource)
    identified = ResourceTagger(parent.new_for_child(), on_spans=False, parent=parents)
    assert identified.is_settled(service.provider) is not hasattr(service.provider, "_handle_fork")
    service.provider._update_resource(Resource({INSTANCE_ID: "the SDK's"}))
    assert identified.is_settled(service.provider)


@pytest.mark.parametrize("sdk_first", [True, False])
def test_id_of_a_forked_child_is_independent_of_the_sdks_renewal_order(sdk_first: bool) -> None:
    service, parent = Service(), RuntimeId.new()
    parents = ResourceTagger(parent, on_spans=True)
    parents.attach(service.provider)
    child = parent.new_for_child()
    identified = ResourceTagger(child, on_spans=True, parent=parents)
    renewed = Resource({INSTANCE_ID: "the SDK's"})
    if sdk_first:
        service.provider._update_resource(renewed)
    identified.attach(service.provider)
    assert identified.is_settled(service.provider) is (sdk_first or not hasattr(service.provider, "_handle_fork"))
    if not sdk_first:
        service.provider._update_resource(renewed)
    identified.attach(service.provider)
    assert identified.is_settled(service.provider)
    assert service.carried() == {**SHOP, RUNTIME_ID: child.value, INSTANCE_ID: "the SDK's"}
    identified.detach()
    assert service.carried() == {**SHOP, INSTANCE_ID: "the SDK's"}


def test_spans_of_an_older_sdk_carry_it_as_well_and_no_more_after_the_stop() -> None:
    service, identity = Service(), RuntimeId.new()
    service.forget_tracers()
    identified = ResourceTagger(identity, on_spans=True)
    identified.attach(service.provider)
    identified.attach(service.provider)
    assert attributes(service.tracer.start_span("work"))[RUNTIME_ID] == identity.value
    identified.detach()
    span: Any = service.tracer.start_span("work")
    assert span.resource is service.resource
    assert service.provider.resource is service.resource


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer versions warn of forks with threads
def test_forked_child_with_an_older_sdk_carries_its_own_id_until_the_stop() -> None:
    service, identity = Service(), RuntimeId.new()
    service.forget_tracers()
    ResourceTagger(identity, on_spans=True).attach(service.provider)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = _is_identified_by_itself(service, identity.new_for_child())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_identified_by_itself(service: Service, identity: RuntimeId) -> int:
    """Return 0 if spans of a child carry its id while attached, and none before and after."""
    said = [attributes(service.tracer.start_span("work"))]
    identified = ResourceTagger(identity, on_spans=True)
    identified.attach(service.provider)
    said.append(attributes(service.tracer.start_span("work")))
    identified.detach()
    said.append(attributes(service.tracer.start_span("work")))
    return int([one.get(RUNTIME_ID) for one in said] != [None, identity.value, None])


_FORKED = """
import os
from splunk_profiler.config import from_env
from splunk_profiler.otel.runtime_id import INSTANCE_ID, RUNTIME_ID, ResourceTagger, RuntimeId
from splunk_profiler.export.resource import current_resource

def said(identity):
    found = current_resource(from_env().resource_attributes)
    attributes = ResourceTagger(identity, on_spans=False).resource(found).attributes
    return attributes[RUNTIME_ID] + " " + attributes.get(INSTANCE_ID, "none")

identity = RuntimeId.new()
print(said(identity), flush=True)
if os.fork() == 0:
    print(said(identity.new_for_child()), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(("set_outside", "instance"), [("", "none"), ("service.instance.id=web-1", "web-1")])
def test_without_a_provider_only_the_environment_says_which_instance_it_is(set_outside: str, instance: str) -> None:
    path = os.pathsep.join([str(ROOT), *sys.path[1:]])
    env = os.environ | {"PYTHONPATH": path, "OTEL_RESOURCE_ATTRIBUTES": set_outside}
    said = subprocess.run([sys.executable, "-c", _FORKED], env=env, capture_output=True, text=True, check=True)
    parent, child = [line.split() for line in said.stdout.splitlines()]
    assert parent[0] != child[0]
    assert parent[1] == child[1] == instance


def test_spans_carry_nothing_unless_asked_and_records_the_runtime_id() -> None:
    service, identity = Service(), RuntimeId.new()
    identified = ResourceTagger(identity, on_spans=False)
    identified.attach(service.provider)
    assert service.provider.resource is service.resource
    assert service.carried() == SHOP
    assert dict(identified.resource(service.resource).attributes) == {**SHOP, RUNTIME_ID: identity.value}
    identified.detach()
    assert service.provider.resource is service.resource


def test_a_provider_that_comes_late_makes_no_second_instance() -> None:
    late, identity = Service({**SHOP, INSTANCE_ID: "its own"}), RuntimeId.new()
    identified = ResourceTagger(identity, on_spans=True)
    before = identified.resource(Resource(SHOP)).attributes
    identified.attach(late.provider)
    after = identified.resource(late.provider.resource).attributes
    assert INSTANCE_ID not in before
    assert after[INSTANCE_ID] == late.carried()[INSTANCE_ID] == "its own"
    assert before[RUNTIME_ID] == after[RUNTIME_ID] == identity.value


def test_a_profiles_resource_says_what_the_spans_say_and_is_made_once() -> None:
    service, identity = Service(), RuntimeId.new()
    identified = ResourceTagger(identity, on_spans=True)
    assert identified.resource(service.resource) is identified.resource(service.resource)
    assert identified.resource(service.resource).attributes[RUNTIME_ID] == identity.value
    assert INSTANCE_ID not in identified.resource(service.resource).attributes
    identified.attach(service.provider)
    assert identified.resource(service.provider.resource) is service.provider.resource
