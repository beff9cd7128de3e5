//! Policies, parameters and webhooks of the attacks on admission. Each matches only one resource of its own.

use serde_json::{Value, json};

use crate::client::{Link, Prepared, expect_code};

/// Resource whose writes a policy with many parameters validates.
pub const PARAMETERS: &str = "limitranges";
/// Resource whose writes costly expressions validate.
pub const COSTLY: &str = "resourcequotas";
/// Resource that many webhook entries name. Their namespace selectors select no namespace.
pub const ENTRIES: &str = "podtemplates";

/// Namespace of the parameters.
const PARAMETER_NAMESPACE: &str = "parameters";
/// Number of parameters of the policy.
const PARAMETER_COUNT: usize = 3_000;
/// Number of costly expressions.
const EXPRESSION_COUNT: usize = 8;
/// Number of webhook configurations.
const CONFIGURATION_COUNT: usize = 20;
/// Number of webhooks in each configuration.
const ENTRIES_PER_CONFIGURATION: usize = 1_000;

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Returns the path of a webhook configuration.
pub fn webhook_configuration(number: usize) -> String {
    format!("{REGISTRATION}/validatingwebhookconfigurations/entries-{number}")
}

/// Writes all objects.
pub async fn fill(link: &Link) {
    let mut objects =
        vec![("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": PARAMETER_NAMESPACE}}))];
    let parameters = format!("/api/v1/namespaces/{PARAMETER_NAMESPACE}/configmaps");
    for number in 0..PARAMETER_COUNT {
        let parameter = json!({"metadata": {"name": format!("p{number}")}, "data": {"text": "x"}});
        objects.push((parameters.clone(), parameter));
    }
    for number in 0..CONFIGURATION_COUNT {
        let path = format!("{REGISTRATION}/validatingwebhookconfigurations");
        objects.push((path, configuration(number)));
    }
    let reference =
        json!({"namespace": PARAMETER_NAMESPACE, "selector": {}, "parameterNotFoundAction": "Allow"});
    let digits = "[0,1,2,3,4,5,6,7,8,9]";
    let costly = ["a", "b", "c", "d"]
        .iter()
        .fold("true".to_owned(), |inner, name| format!("{digits}.all({name}, {inner})"));
    objects.extend(policy(
        "parameters",
        PARAMETERS,
        json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "validations": [{"expression": "params.data.text == 'x' && object.metadata.name != 'b'"}]}),
        json!({"paramRef": reference}),
    ));
    let validations = vec![json!({"expression": costly}); EXPRESSION_COUNT];
    objects.extend(policy("costly", COSTLY, json!({"validations": validations}), json!({})));
    for (path, object) in objects {
        let answer = link.call(&Prepared::post(path.as_str(), object.to_string())).await;
        expect_code(&path, &answer, &[201, 409]);
    }
}

/// A policy for creates of a resource and its binding, with their paths.
fn policy(name: &str, resource: &str, spec: Value, binding: Value) -> [(String, Value); 2] {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]});
    let mut spec_fields = json!({"matchConstraints": {"resourceRules": [rule]}});
    let mut binding_fields = json!({"policyName": name, "validationActions": ["Deny"]});
    for (base, more) in [(&mut spec_fields, spec), (&mut binding_fields, binding)] {
        let (Value::Object(base), Value::Object(more)) = (base, more) else { continue };
        base.extend(more);
    }
    let object = |spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    [
        (format!("{REGISTRATION}/validatingadmissionpolicies"), object(spec_fields)),
        (format!("{REGISTRATION}/validatingadmissionpolicybindings"), object(binding_fields)),
    ]
}

/// A configuration of webhooks that match the resource but no namespace.
fn configuration(number: usize) -> Value {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [ENTRIES]});
    let entry = |position: usize| {
        json!({
            "name": format!("w{position}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/x"}, "rules": [rule],
            "namespaceSelector": {"matchLabels": {"selected": position.to_string()}},
        })
    };
    let webhooks: Vec<Value> = (0..ENTRIES_PER_CONFIGURATION).map(entry).collect();
    json!({"metadata": {"name": format!("entries-{number}")}, "webhooks": webhooks})
}
