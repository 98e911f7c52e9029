"""The messages of pprof's ``profile.proto`` for Google's protobuf runtime: the part that our profiles use.

Pure; imports nothing of ours. The schema is here because no maintained package on PyPI has it compiled.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

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


def _make_message() -> Any:
    file = FileDescriptorProto(name="splunk_profiler/pprof.proto", package=_PACKAGE, syntax="proto3")
    for name, body in re.findall(r"message (\w+) {(.*?)}", _SCHEMA, re.DOTALL):
        message = file.message_type.add(name=name)
        for repeated, kind, field, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body):
            added = message.field.add(name=field, number=int(number))
            added.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            if kind[0].isupper():
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))


ProfileMessage = _make_message()
