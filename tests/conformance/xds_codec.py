"""Runs in an environment of its own, with `xds-protos`: parse and build what stdin says.

Each line in is JSON: the message's name, its bytes in hex, and its fields. Each line out holds the
fields that those bytes have here, whether any were unknown, and the bytes that those fields make.
"""

import json
import sys

from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy
from google.protobuf import json_format, unknown_fields

for line in sys.stdin:
    case = json.loads(line)
    kind = getattr(envoy, case["name"])
    parsed = kind.FromString(bytes.fromhex(case["bytes"]))
    built = json_format.ParseDict(case["fields"], kind())
    sys.stdout.write(
        json.dumps(
            {
                "fields": json_format.MessageToDict(
                    parsed, preserving_proto_field_name=True, use_integers_for_enums=True
                ),
                "unknown": len(unknown_fields.UnknownFieldSet(parsed)),
                "bytes": built.SerializeToString(deterministic=True).hex(),
            }
        )
        + "\n"
    )
