"""The messages of pprof's ``profile.proto`` for Google's protobuf runtime: the part that our profiles use.

Pure; imports `wire` only. The schema is here because no maintained package on PyPI has it compiled.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pool, message_factory

from splunk_profiler.formats.wire import field, tag, varint

_SCHEMA = """
message Profile {
  repeated ValueType sample_type = 1;
  repeated Sample sample = 2;
  repeated Mapping mapping = 3;
  repeated Location location = 4;
  repeated Function function = 5;
  repeated string string_table = 6;
  int64 time_nanos = 9;
  int64 duration_nanos = 10;
  ValueType period_type = 11;
  int64 period = 12;
  repeated int64 comment = 13;
  int64 default_sample_type = 14;
}
message ValueType { int64 type = 1; int64 unit = 2; }
message Sample { repeated uint64 location_id = 1; repeated int64 value = 2; repeated Label label = 3; }
message Label { int64 key = 1; int64 str = 2; int64 num = 3; int64 num_unit = 4; }
message Mapping {
  uint64 id = 1;
  int64 filename = 5;
  int64 build_id = 6;
  bool has_functions = 7;
  bool has_filenames = 8;
  bool has_line_numbers = 9;
}
message Location { uint64 id = 1; uint64 mapping_id = 2; repeated Line line = 4; }
message Line { uint64 function_id = 1; int64 line = 2; }
message Function { uint64 id = 1; int64 name = 2; int64 system_name = 3; int64 filename = 4; int64 start_line = 5; }
"""
_PACKAGE = "splunk_profiler.pprof"  # not the original's, which the application may have loaded


# Numbers of fields, types and labels in descriptor.proto, whose messages are not loaded for this: they take 0.8 MiB.
_TYPES = {"int64": 3, "uint64": 4, "bool": 8, "string": 9}
_MESSAGE_TYPE, _OPTIONAL, _REPEATED = 11, 1, 3


def _describe_field(repeated: str, kind: str, name: str, number: str) -> bytes:
    """Encode a ``FieldDescriptorProto``."""
    numbers = ((3, int(number)), (4, _REPEATED if repeated else _OPTIONAL), (5, _TYPES.get(kind, _MESSAGE_TYPE)))
    encoded = field(tag(1), name.encode()) + b"".join(varint(key << 3) + varint(value) for key, value in numbers)
    return encoded if kind in _TYPES else encoded + field(tag(6), f".{_PACKAGE}.{kind}".encode())


def _describe_message(name: str, body: str) -> bytes:
    """Encode a ``DescriptorProto``."""
    fields = re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body)
    return field(tag(1), name.encode()) + b"".join(field(tag(2), _describe_field(*each)) for each in fields)


def _make_messages() -> dict[str, Any]:
    """Return the classes of all messages: nothing else holds those of fields.

    CPython 3.14 clears such a class and frees it later where it collects garbage on a thread with a small stack.
    Meanwhile protobuf finds it, and crashes.
    """
    name = "splunk_profiler/pprof.proto"
    head = ((1, name.encode()), (2, _PACKAGE.encode()), (12, b"proto3"))
    messages = re.findall(r"message (\w+) {(.*?)}", _SCHEMA, re.DOTALL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(
        b"".join(field(tag(number), text) for number, text in head)
        + b"".join(field(tag(4), _describe_message(*each)) for each in messages)
    )
    described = pool.FindFileByName(name).message_types_by_name
    return {key: message_factory.GetMessageClass(described[key]) for key in described}


_MESSAGES = _make_messages()
ProfileMessage = _MESSAGES["Profile"]
