"""Checks a bill of materials against the schema of CycloneDX, and that each part has a version and a licence.

    valid_sbom.py FILE
"""

import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = Path(sys.argv[1]).read_text()
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
if fault:
    sys.exit(f"{sys.argv[1]}: {fault}")
bill = json.loads(text)
parts = {part["bom-ref"]: part for part in bill["components"]}
poor = [name for name, part in parts.items() if not part.get("version") or not part.get("licenses")]
lost = [used for entry in bill["dependencies"] for used in entry["dependsOn"] if used not in parts]
if poor or lost or not parts:
    sys.exit(f"{sys.argv[1]}: without version or licence {poor}, used and not listed {lost}")
print(f"{len(parts)} components, valid CycloneDX {bill['specVersion']}")
