//! Tests of the authorizer library and of the golden list of all functions.

use std::sync::Arc;

use expressions::{
    AUTHORIZER, AuthorizationCheck, AuthorizationResult, Authorizer, Cost, Environment, FunctionRow,
    RESOURCE_CHECK, Value, authorizer, functions, request_resource,
};

fn outcome(environment: &Environment, source: &str) -> String {
    let program = match environment.compile(source) {
        Ok(program) => program,
        Err(error) => {
            let first = error.issues.first().map(|issue| issue.message.clone());
            return format!("compile: {}", first.unwrap_or_default());
        }
    };
    let result = program.evaluate(&[], &mut Cost::limit(1_000_000));
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error: {error}"),
    }
}

/// Authorizer that allows `create` of pods, fails for secrets, and returns the check as reason.
struct Echo;

impl Authorizer for Echo {
    fn check(&self, check: &AuthorizationCheck) -> AuthorizationResult {
        let error = (check.resource == "secrets").then(|| "no decision".to_owned());
        let allowed = check.verb == "create" && check.resource == "pods";
        AuthorizationResult { allowed, reason: format!("{check:?}"), error }
    }
}

#[test]
fn authorizer_functions_return_decisions() {
    let environment = Environment::new().variable("authorizer", AUTHORIZER);
    let expected_check = AuthorizationCheck {
        service_account: Some(("ns".to_owned(), "sa".to_owned())),
        verb: "get".to_owned(),
        group: "apps".to_owned(),
        resource: "pods".to_owned(),
        subresource: "log".to_owned(),
        namespace: "ns".to_owned(),
        name: "n".to_owned(),
        field_selector: Some("a=b".to_owned()),
        label_selector: Some("c".to_owned()),
        path: None,
    };
    let full_chain = "authorizer.serviceAccount('ns', 'sa').group('apps').resource('pods').subresource('log')\
                 .namespace('ns').name('n').fieldSelector('a=b').labelSelector('c').check('get').reason()";
    let path = AuthorizationCheck {
        verb: "get".to_owned(),
        path: Some("/x".to_owned()),
        ..AuthorizationCheck::default()
    };
    let table = [
        (
            "authorizer.group('').resource('pods').namespace('ns').check('create').allowed()",
            "true".to_owned(),
        ),
        ("authorizer.group('').resource('pods').check('get').allowed()", "false".to_owned()),
        ("authorizer.group('').resource('secrets').check('get').errored()", "true".to_owned()),
        ("authorizer.group('').resource('secrets').check('get').error()", "\"no decision\"".to_owned()),
        (full_chain, format!("{:?}", format!("{expected_check:?}"))),
        ("authorizer.path('/x').check('get').reason()", format!("{:?}", format!("{path:?}"))),
    ];
    for (source, expected) in table {
        let program = environment.compile(source).unwrap();
        let mut cost = Cost::limit(1_000_000);
        let value = program.evaluate(&[("authorizer", authorizer(Arc::new(Echo)))], &mut cost).unwrap();
        assert_eq!(format!("{value:?}"), expected, "{source}");
        assert!(cost.used() > 350_000, "{source}: {}", cost.used());
    }
    let check = AuthorizationCheck {
        resource: "pods".to_owned(),
        namespace: "ns".to_owned(),
        ..AuthorizationCheck::default()
    };
    let with_request_resource = environment.clone().variable("authorizer.requestResource", RESOURCE_CHECK);
    for (source, expected) in [
        ("authorizer.requestResource.check('create').allowed()", "true"),
        ("authorizer.requestResource.name('n').check('get').allowed()", "false"),
        ("authorizer.requestResource.check('get').reason().contains('namespace: \"ns\"')", "true"),
        ("authorizer.group('').resource('pods').check('create').allowed()", "true"),
        ("authorizer.requestResource == authorizer.requestResource.namespace('ns')", "true"),
    ] {
        let program = with_request_resource.compile(source).unwrap();
        let variables = [
            ("authorizer", authorizer(Arc::new(Echo))),
            ("authorizer.requestResource", request_resource(Arc::new(Echo), check.clone())),
        ];
        let value = program.evaluate(&variables, &mut Cost::limit(1_000_000)).unwrap();
        assert_eq!(format!("{value:?}"), expected, "{source}");
    }
    assert_eq!(
        outcome(&environment, "authorizer.resource('pods')"),
        "compile: found no matching overload for 'resource' applied to 'kubernetes.authorization.Authorizer.(string)'"
    );
}

/// Kubernetes has no binary suffix above `Ei`, and shows the mantissa of a larger quantity without a suffix.
#[test]
fn quantity_above_binary_suffixes_has_no_suffix() {
    let mut sum = "quantity('4Ei')".to_owned();
    let mut texts = Vec::new();
    for _ in 0..9 {
        sum = format!("{sum}.add({sum})");
        let program = Environment::new().compile(&sum).unwrap();
        let value = program.evaluate(&[], &mut Cost::limit(1_000_000)).unwrap();
        let Value::Opaque(quantity) = value else { panic!("{value:?}") };
        texts.push(quantity.text());
    }
    assert_eq!(texts, ["8Ei", "16Ei", "32Ei", "64Ei", "128Ei", "256Ei", "512Ei", "1", "2"]);
}

/// Compares the table of functions with a golden file: release, overload, cost and size of the result. Quotients are
/// rounded up.
/// `UPDATE=1` rewrites the list; review its changes.
#[test]
fn function_list_matches_golden_file() {
    let line =
        |row: FunctionRow| format!("{:>2} | {} | {} | {}\n", row.since, row.declaration, row.cost, row.size);
    let mut lines: Vec<String> = functions().map(line).collect();
    lines.sort();
    lines.insert(0, "since | overload | cost units | size of the result in estimates\n".to_owned());
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/functions.txt");
    let found = lines.concat();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), found);
}
