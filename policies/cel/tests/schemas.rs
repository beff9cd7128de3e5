//! Rules on the data of compiled schemas: the rows of the specification's table of types.

mod json_schema;

use expressions::{Cost, Environment, Type, Value};
use json_schema::JsonSchema;
use serde_json::json;

#[test]
fn the_table_of_types() {
    let schema = json!({
        "type": "object",
        "properties": {
            "obj": {"type": "object", "properties": {"a": {"type": "string"}}},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            "emb": {"type": "object", "x-svc-embedded-type": true, "x-svc-preserve-unknown-fields": true},
            "free": {"type": "object", "x-svc-preserve-unknown-fields": true,
                     "properties": {"known": {"type": "integer"}}},
            "any": {"x-svc-preserve-unknown-fields": true},
            "p": {"x-svc-int-or-string": true},
            "q": {"x-svc-int-or-string": true},
            "l": {"type": "array", "items": {"type": "integer"}},
            "b": {"type": "boolean"},
            "n": {"type": "number", "format": "float"},
            "i": {"type": "integer", "format": "int32"},
            "s": {"type": "string"},
            "b64": {"type": "string", "format": "byte"},
            "d": {"type": "string", "format": "date"},
            "dt": {"type": "string", "format": "date-time"},
            "du": {"type": "string", "format": "duration"},
            "x": {"type": "string", "nullable": true},
            "a-b": {"type": "integer"}, "a/b": {"type": "integer"}, "1a": {"type": "integer"},
        },
    });
    let data = json!({
        "obj": {"a": "b"}, "m": {"k": 1}, "free": {"known": 1, "unknown": 2}, "any": 1, "p": 5, "q": "50%",
        "emb": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {}},
        "l": [1, 2], "b": true, "n": 1, "i": 3, "s": "t", "b64": "YWJj", "d": "2024-01-02",
        "dt": "2024-01-02T03:04:05Z", "du": "30m", "x": null, "a-b": 1, "a/b": 2, "1a": 3,
        "apiVersion": "g/v1", "kind": "Widget", "metadata": {"name": "w"},
    });
    let ty = Type::of_schema(&JsonSchema::new(&schema, "x-svc", true), "root").unwrap();
    let table = [
        ("self.obj.a == 'b'", "true"),
        ("self.obj.nosuch", "compile: undefined field 'nosuch'"),
        ("self.m['k'] == 1 && self.m.all(k, self.m[k] > 0)", "true"),
        ("self.emb.kind == 'Pod' && self.emb.apiVersion == 'v1' && self.emb.metadata.name == 'n'", "true"),
        ("has(self.emb.metadata.generateName)", "false"),
        ("self.emb.metadata.labels", "compile: undefined field 'labels'"),
        ("self.metadata.name == 'w' && self.kind == 'Widget'", "true"),
        ("self.free.known == 1", "true"),
        ("self.free.unknown", "compile: undefined field 'unknown'"),
        ("self.any", "compile: undefined field 'any'"),
        ("type(self.p) == int ? self.p < 10 : self.p.endsWith('%')", "true"),
        ("type(self.q) == int ? self.q < 10 : self.q.endsWith('%')", "true"),
        ("self.l.size() < 3 && self.l[0] == 1", "true"),
        ("self.b", "true"),
        ("type(self.n) == double && type(self.i) == int && type(self.s) == string", "true"),
        ("self.b64 == b'abc'", "true"),
        ("self.d < timestamp('2030-01-01T00:00:00Z') && self.dt.getFullYear() == 2024", "true"),
        ("self.du <= duration('1h')", "true"),
        ("self.x == null", "compile: found no matching overload for '_==_' applied to '(string, null_type)'"),
        ("self.a__dash__b + self.a__slash__b", "3"),
        ("self.i < self.n", "false"),
    ];
    for (source, want) in table {
        let got = match Environment::new().variable("self", ty.clone()).compile(source) {
            Err(error) => format!("compile: {}", error.issues[0].message),
            Ok(program) => {
                let variables = [("self", Value::of(&data, &ty).unwrap())];
                match program.evaluate(&variables, &mut Cost::limit(10_000)) {
                    Ok(value) => format!("{value:?}"),
                    Err(error) => format!("error: {error}"),
                }
            }
        };
        assert_eq!(got, want, "{source}");
    }
}
