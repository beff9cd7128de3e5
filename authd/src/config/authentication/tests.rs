//! Every field, limit and rule of the authentication configuration file, by requirement.

use apimachinery::names::Preset;

use super::*;

fn context() -> Context {
    Context {
        names: Arc::new(Names::new(Preset::Svc, "svc.internal").unwrap()),
        disallowed_issuers: vec!["https://own.test".to_owned()],
        anonymous_conditions: true,
    }
}

const HEAD: &str = "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\n";
/// A minimal entry of `jwt`, in flow style: `{issuer: …, claimMappings: …}`.
const ISSUER: &str = "issuer: {url: 'https://a.test', audiences: [x]}";
const USERNAME: &str = "claimMappings: {username: {claim: sub, prefix: ''}}";

fn errors_of_file(text: &str) -> Vec<String> {
    match read(text.as_bytes(), &context()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the errors of one entry of `jwt` without the line, which is the same for all fields of a flow
/// mapping.
fn errors(entry: &str) -> Vec<String> {
    let text = format!("{HEAD}jwt:\n- {{{entry}}}\n");
    errors_of_file(&text)
        .into_iter()
        .map(|error| error.strip_prefix("line 4: ").map(str::to_owned).unwrap_or(error))
        .collect()
}

/// Checks that each entry has exactly the error beside it; `""` means no error.
fn check(entries: &[(&str, &str)]) {
    for (entry, expected) in entries {
        let got = errors(entry);
        if expected.is_empty() {
            assert_eq!(got, [""; 0], "{entry}");
        } else {
            assert!(
                got.len() == 1 && got[0].starts_with(expected),
                "{entry}\n wants {expected}\n has {got:#?}"
            );
        }
    }
}

fn with_issuer(fields: &str) -> String {
    format!("issuer: {{{fields}}}, {USERNAME}")
}

fn with_username(fields: &str) -> String {
    format!("{ISSUER}, claimMappings: {{username: {{{fields}}}}}")
}

fn with_mapping(fields: &str) -> String {
    format!("{ISSUER}, claimMappings: {{username: {{claim: sub, prefix: ''}}, {fields}}}")
}

fn with_rules(fields: &str) -> String {
    format!("{ISSUER}, {USERNAME}, {fields}")
}

fn check_cases(cases: &[(&str, &str)], entry_of: impl Fn(&str) -> String) {
    for (fields, expected) in cases {
        check(&[(&entry_of(fields), expected)]);
    }
}

#[test]
fn authentication_config_version_and_kind_are_validated() {
    for (text, expected) in [
        (HEAD.to_owned(), ""),
        (format!("{HEAD}jwt: []\n"), ""),
        (HEAD.replace("v1beta1", "v1alpha1"), ""),
        (
            HEAD.replace("v1beta1", "v1"),
            "line 1: apiVersion: Unsupported value: \"apiserver.config.svc.internal/v1\"",
        ),
        (HEAD.replace("svc.internal", "k8s.io"), "line 1: apiVersion: Unsupported value"),
        (
            HEAD.replace("Authentication", "Authorization"),
            "line 2: kind: Unsupported value: \"AuthorizationConfiguration\"",
        ),
        (format!("{HEAD}jwt: {{}}\n"), "line 3: jwt: Invalid value: \"object\": must be a list of objects"),
        (format!("{HEAD}jwts: []\n"), "line 3: strict decoding error: unknown field \"jwts\""),
        (format!("{HEAD}jwt: []\njwt: []\n"), "line 4: strict decoding error: duplicate field \"jwt\""),
    ] {
        let got = errors_of_file(&text);
        assert_eq!(got.len(), usize::from(!expected.is_empty()), "{text}\n{got:#?}");
        assert!(got.iter().all(|error| error.starts_with(expected)), "{text}\n{got:#?}");
    }
}

#[test]
fn more_than_64_jwt_authenticators_are_rejected() {
    let file = |count: usize| {
        let entry = |n| format!("- {{issuer: {{url: 'https://i{n}.test', audiences: [x]}}, {USERNAME}}}\n");
        format!("{HEAD}jwt:\n{}", (0..count).map(entry).collect::<String>())
    };
    assert_eq!(read(file(64).as_bytes(), &context()).unwrap().jwt.len(), 64);
    assert_eq!(errors_of_file(&file(65)), ["line 3: jwt: Too many: 65: must have at most 64 items"]);
}

#[test]
fn jwt_issuer_url_is_validated() {
    let url = |url: &str| with_issuer(&format!("url: '{url}', audiences: [x]"));
    check_cases(
        &[
            ("https://a.test", ""),
            ("https://a.test:8443/realms/x", ""),
            ("HTTPS://a.test", ""),
            ("https://127.0.0.1:1/", ""),
            ("", "jwt[0].issuer.url: Required value"),
            (
                "http://a.test",
                "jwt[0].issuer.url: Invalid value: \"http://a.test\": URL scheme must be https",
            ),
            ("a.test", "jwt[0].issuer.url: Invalid value: \"a.test\": URL scheme must be https"),
            (
                "https://u:p@a.test",
                "jwt[0].issuer.url: Invalid value: \"https://u:p@a.test\": URL must not contain a username or password",
            ),
            (
                "https://a.test?a=b",
                "jwt[0].issuer.url: Invalid value: \"https://a.test?a=b\": URL must not contain a query",
            ),
            (
                "https://a.test#f",
                "jwt[0].issuer.url: Invalid value: \"https://a.test#f\": URL must not contain a fragment",
            ),
            ("https://", "jwt[0].issuer.url: Invalid value: \"https://\": URL must have a host"),
            ("https://a b", "jwt[0].issuer.url: Invalid value: \"https://a b\": URL must have a host"),
            (
                "https://own.test",
                "jwt[0].issuer.url: Invalid value: \"https://own.test\": URL must not overlap with disallowed issuers: [https://own.test]",
            ),
        ],
        url,
    );
    check(&[(&with_issuer("audiences: [x]"), "jwt[0].issuer.url: Required value")]);
}

#[test]
fn jwt_discovery_url_is_validated() {
    check_cases(
        &[
            ("https://b.test/.well-known/openid-configuration", ""),
            ("https://own.test", ""),
            (
                "https://a.test",
                "jwt[0].issuer.discoveryURL: Invalid value: \"https://a.test\": discoveryURL must be different from URL",
            ),
            (
                "https://a.test/",
                "jwt[0].issuer.discoveryURL: Invalid value: \"https://a.test/\": discoveryURL must be different from URL",
            ),
            (
                "http://b.test",
                "jwt[0].issuer.discoveryURL: Invalid value: \"http://b.test\": URL scheme must be https",
            ),
            (
                "https://b.test?x=1",
                "jwt[0].issuer.discoveryURL: Invalid value: \"https://b.test?x=1\": URL must not contain a query",
            ),
        ],
        |url| with_issuer(&format!("url: 'https://a.test', discoveryURL: '{url}', audiences: [x]")),
    );
}

#[test]
fn duplicate_jwt_issuer_url_is_rejected() {
    let entry = |issuer: &str| format!("- {{{}}}\n", with_issuer(&format!("{issuer}, audiences: [x]")));
    let twice = format!("{HEAD}jwt:\n{0}{0}", entry("url: 'https://a.test'"));
    assert_eq!(errors_of_file(&twice), ["line 5: jwt[1].issuer.url: Duplicate value: \"https://a.test\""]);
    let same = format!(
        "{HEAD}jwt:\n{}{}",
        entry("url: 'https://a.test', discoveryURL: 'https://d.test'"),
        entry("url: 'https://b.test', discoveryURL: 'https://d.test'")
    );
    assert_eq!(
        errors_of_file(&same),
        ["line 5: jwt[1].issuer.discoveryURL: Duplicate value: \"https://d.test\""]
    );
}

#[test]
fn jwt_audiences_and_match_policy_are_validated() {
    check_cases(
        &[
            ("audiences: [x]", ""),
            ("audiences: [x], audienceMatchPolicy: MatchAny", ""),
            ("audiences: [x, z], audienceMatchPolicy: MatchAny", ""),
            ("audiences: []", "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required"),
            ("", "jwt[0].issuer.audiences: Required value"),
            ("audiences: ['']", "jwt[0].issuer.audiences[0]: Required value"),
            ("audiences: [x, x], audienceMatchPolicy: MatchAny", "jwt[0].issuer.audiences[1]: Duplicate value: \"x\""),
            ("audiences: [x, z]", "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences"),
            ("audiences: [x, z], audienceMatchPolicy: MatchAll", "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"MatchAll\": audienceMatchPolicy must be MatchAny for multiple audiences"),
            ("audiences: [x], audienceMatchPolicy: MatchAll", "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"MatchAll\": audienceMatchPolicy must be empty or MatchAny for single audience"),
        ]
        .map(|(fields, expected)| (fields, expected)),
        |fields| with_issuer(&format!("url: 'https://a.test', {fields}")),
    );
    let text = errors(&with_issuer("url: 'https://a.test', audiences: x"));
    assert_eq!(text[0], "jwt[0].issuer.audiences: Invalid value: \"string\": must be a list of strings");
}

#[test]
fn jwt_certificate_authority_is_validated() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    for (pem, expected) in [
        (pem.as_str(), ""),
        ("nonsense", "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": "),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": ",
        ),
    ] {
        let quoted = serde_json::to_string(pem).unwrap();
        check(&[(
            &with_issuer(&format!("url: 'https://a.test', audiences: [x], certificateAuthority: {quoted}")),
            expected,
        )]);
    }
}

#[test]
fn jwt_claim_validation_rules_are_validated() {
    check_cases(
        &[
            ("{claim: hd, requiredValue: x}", ""),
            ("{claim: hd}", ""),
            ("{expression: 'claims.n == 1'}, {expression: 'claims.n == 2', message: m}", ""),
            (
                "{claim: hd, expression: 'true'}",
                "jwt[0].claimValidationRules[0]: Invalid value: \"hd\": claim and expression can't both be set",
            ),
            (
                "{message: m}",
                "jwt[0].claimValidationRules[0]: Required value: claim or expression is required",
            ),
            (
                "{claim: hd, message: m}",
                "jwt[0].claimValidationRules[0].message: Invalid value: \"m\": may not be specified when claim is set",
            ),
            (
                "{expression: 'true', requiredValue: x}",
                "jwt[0].claimValidationRules[0].requiredValue: Invalid value: \"x\": may not be specified when expression is set",
            ),
            (
                "{claim: hd}, {claim: hd, requiredValue: z}",
                "jwt[0].claimValidationRules[1].claim: Duplicate value: \"hd\"",
            ),
            (
                "{expression: 'true'}, {expression: 'true'}",
                "jwt[0].claimValidationRules[1].expression: Duplicate value: \"true\"",
            ),
            (
                "{expression: claims.n}",
                "jwt[0].claimValidationRules[0].expression: Invalid value: \"claims.n\": must evaluate to bool",
            ),
            (
                "{expression: '1'}",
                "jwt[0].claimValidationRules[0].expression: Invalid value: \"1\": must evaluate to bool",
            ),
            (
                "{expression: 'claims.n =='}",
                "jwt[0].claimValidationRules[0].expression: Invalid value: \"claims.n ==\": compilation failed: ERROR: <input>:1:",
            ),
            (
                "{expression: 'user.username == \"\"'}",
                "jwt[0].claimValidationRules[0].expression: Invalid value: \"user.username == \\\"\\\"\": compilation failed: ERROR: <input>:1:1: undeclared reference",
            ),
        ],
        |rules| with_rules(&format!("claimValidationRules: [{rules}]")),
    );
}

#[test]
fn jwt_username_mapping_is_validated() {
    check_cases(
        &[
            ("claim: sub, prefix: 'p:'", ""),
            ("claim: sub, prefix: ''", ""),
            ("expression: '\"x:\" + claims.sub'", ""),
            ("expression: claims.sub", ""),
            (
                "claim: sub",
                "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set.",
            ),
            ("claim: sub, prefix: null", "jwt[0].claimMappings.username.prefix: Required value"),
            (
                "claim: sub, expression: claims.sub",
                "jwt[0].claimMappings.username: Invalid value: \"\": claim and expression can't both be set",
            ),
            (
                "expression: claims.sub, prefix: ''",
                "jwt[0].claimMappings.username.prefix: Invalid value: \"\": may not be specified when expression is set",
            ),
            ("", "jwt[0].claimMappings.username: Required value: claim or expression is required"),
            ("expression: '1'", ""),
            ("expression: '[claims.sub]'", ""),
        ],
        with_username,
    );
    check(&[
        (ISSUER, "jwt[0].claimMappings.username: Required value: claim or expression is required"),
        (&format!("{ISSUER}, claimMappings: {{}}"), "jwt[0].claimMappings.username: Required value"),
    ]);
}

#[test]
fn email_username_requires_email_verified() {
    let unverified = "jwt[0].claimMappings.username.expression: Invalid value: \"claims.email\": claims.email_verified must be used in";
    let email = "username: {expression: claims.email}";
    let entry = |mappings: &str, rules: &str| format!("{ISSUER}, claimMappings: {{{mappings}}}, {rules}");
    for (entry, expected) in [
        (entry(email, ""), unverified),
        (entry(email, "claimValidationRules: [{claim: email_verified, requiredValue: 'true'}]"), unverified),
        (entry(email, "claimValidationRules: [{expression: 'claims.email_verified == true'}]"), ""),
        (
            entry(
                email,
                "claimValidationRules: [{expression: 'claims.?email_verified.orValue(true) == true'}]",
            ),
            "",
        ),
        (
            entry(
                &format!(
                    "{email}, extra: [{{key: a.test/v, valueExpression: 'string(claims.email_verified)'}}]"
                ),
                "",
            ),
            "",
        ),
        (entry("username: {expression: 'claims.email_verified ? claims.email : \"\"'}", ""), ""),
        (entry("username: {expression: 'claims.email_'}", ""), ""),
        (entry("username: {claim: email, prefix: ''}", ""), ""),
        (entry("username: {expression: 'claims.sub'}, uid: {expression: claims.email}", ""), ""),
    ] {
        check(&[(&entry, expected)]);
    }
    let index = errors(&with_username(r#"expression: 'claims["email"]'"#));
    assert!(index.len() == 1 && index[0].contains("email_verified must be used"), "{index:?}");
}

#[test]
fn jwt_groups_and_uid_mappings_are_validated() {
    check_cases(
        &[
            ("groups: {claim: roles, prefix: 'g:'}", ""),
            ("groups: {expression: claims.role}", ""),
            ("groups: {expression: '[claims.role, claims.team]'}", ""),
            ("groups: {expression: '[string(claims.role), \"b\"]'}", ""),
            // The elements of a list literal must have one type; a claim has no known type.
            (
                "groups: {expression: '[claims.role, \"b\"]'}",
                "jwt[0].claimMappings.groups.expression: Invalid value: \"[claims.role, \\\"b\\\"]\": \
                 compilation failed: ERROR: <input>:1:15: expected type ",
            ),
            (
                "groups: {expression: '[\"b\", claims.role]'}",
                "jwt[0].claimMappings.groups.expression: Invalid value: \"[\\\"b\\\", claims.role]\": \
                 compilation failed: ERROR: <input>:1:",
            ),
            ("groups: {expression: '[]'}", ""),
            ("groups: {}", ""),
            ("groups: {claim: roles}", "jwt[0].claimMappings.groups.prefix: Required value"),
            ("groups: {prefix: 'g:'}", "jwt[0].claimMappings.groups: Required value"),
            (
                "groups: {claim: a, expression: claims.b}",
                "jwt[0].claimMappings.groups: Invalid value: \"\": claim and expression can't both be set",
            ),
            ("groups: {expression: '{claims.a: true}'}", ""),
            ("groups: {expression: 'true'}", ""),
            ("groups: {expression: '[1]'}", ""),
            ("uid: {claim: oid}", ""),
            ("uid: {expression: 'claims.oid + \"-x\"'}", ""),
            (
                "uid: {claim: oid, expression: claims.oid}",
                "jwt[0].claimMappings.uid: Invalid value: \"\": claim and expression can't both be set",
            ),
            (
                "uid: {claim: oid, prefix: x}",
                "strict decoding error: unknown field \"jwt[0].claimMappings.uid.prefix\"",
            ),
            ("uid: {expression: '1'}", ""),
        ],
        with_mapping,
    );
}

#[test]
fn jwt_extra_mappings_are_validated() {
    let key = |key: &str| format!("jwt[0].claimMappings.extra[0].key: Invalid value: \"{key}\": ");
    let cases = [
        ("example.org/tenant", String::new()),
        ("example.org/a/b-._~%!$&'()*+,;=:", String::new()),
        ("my.k8s.io.example/x", String::new()),
        ("foo", key("foo") + "must be a domain-prefixed path (such as \\\"acme.io/foo\\\")"),
        ("/foo", key("/foo") + "must be a domain-prefixed path"),
        ("example.org/", key("example.org/") + "must be a domain-prefixed path"),
        ("", "jwt[0].claimMappings.extra[0].key: Required value".to_owned()),
        ("example.org/Foo", key("example.org/Foo") + "key must be lowercase"),
        ("a_b.c/x", key("a_b.c") + "a lowercase RFC 1123 subdomain must consist of"),
        ("example.org/a b", key("a b") + "Invalid path"),
        ("example.org/é", key("é") + "Invalid path"),
        (
            "authentication.svc.internal/x",
            key("authentication.svc.internal/x")
                + "k8s.io, kubernetes.io, svc.internal and their subdomains are reserved",
        ),
        ("svc.internal/x", key("svc.internal/x") + "k8s.io, "),
        ("k8s.io/x", key("k8s.io/x") + "k8s.io, "),
        ("a.kubernetes.io/x", key("a.kubernetes.io/x") + "k8s.io, "),
    ];
    for (key, expected) in cases {
        let quoted = serde_json::to_string(key).unwrap();
        let entry = with_mapping(&format!("extra: [{{key: {quoted}, valueExpression: claims.t}}]"));
        let got = errors(&entry);
        let got = got.first().cloned().unwrap_or_default().replace("\\\"", "\"");
        let expected = expected.replace("\\\"", "\"");
        assert!(
            if expected.is_empty() { got.is_empty() } else { got.starts_with(&expected) },
            "{key}: {got}"
        );
    }
    check_cases(
        &[
            (
                "{key: a.test/x, valueExpression: claims.a}, {key: a.test/y, valueExpression: '[claims.b]'}",
                "",
            ),
            (
                "{key: a.test/x, valueExpression: claims.a}, {key: a.test/x, valueExpression: claims.b}",
                "jwt[0].claimMappings.extra[1].key: Duplicate value: \"a.test/x\"",
            ),
            ("{key: a.test/x}", "jwt[0].claimMappings.extra[0].valueExpression: Required value"),
            ("{key: a.test/x, valueExpression: '{}'}", ""),
        ],
        |extra| with_mapping(&format!("extra: [{extra}]")),
    );
    let upper = errors(&with_mapping("extra: [{key: Example.org/Foo, valueExpression: claims.t}]"));
    assert!(upper.iter().any(|error| error.ends_with("key must be lowercase")), "{upper:?}");
}

#[test]
fn jwt_user_validation_rules_are_validated() {
    check_cases(
        &[
            ("{expression: '!user.username.startsWith(\"system:\")', message: m}", ""),
            (
                "{expression: 'user.groups.all(g, g != \"\") && user.uid == \"\" && size(user.extra) == 0'}",
                "",
            ),
            ("{message: m}", "jwt[0].userValidationRules[0].expression: Required value"),
            (
                "{expression: 'true'}, {expression: 'true'}",
                "jwt[0].userValidationRules[1].expression: Duplicate value: \"true\"",
            ),
            (
                "{expression: user.username}",
                "jwt[0].userValidationRules[0].expression: Invalid value: \"user.username\": must evaluate to bool",
            ),
            (
                "{expression: 'claims.sub == \"\"'}",
                "jwt[0].userValidationRules[0].expression: Invalid value: \"claims.sub == \\\"\\\"\": compilation failed: ERROR: <input>:1:1: undeclared reference",
            ),
            (
                "{expression: 'user.name == \"\"'}",
                "jwt[0].userValidationRules[0].expression: Invalid value: \"user.name == \\\"\\\"\": compilation failed",
            ),
        ],
        |rules| with_rules(&format!("userValidationRules: [{rules}]")),
    );
}

#[test]
fn anonymous_config_limits_paths() {
    let anonymous =
        |text: &str| read(format!("{HEAD}anonymous: {text}\n").as_bytes(), &context()).map(|c| c.anonymous);
    assert_eq!(anonymous("null").unwrap(), None);
    let without_limits = anonymous("{enabled: true}").unwrap().unwrap();
    assert!(without_limits.allows("/livez") && without_limits.allows("/api"));
    let limited =
        anonymous("{enabled: true, conditions: [{path: /livez}, {path: /readyz}]}").unwrap().unwrap();
    assert!(
        limited.allows("/livez")
            && limited.allows("/readyz")
            && !limited.allows("/livez/")
            && !limited.allows("/api")
    );
    let disabled = anonymous("{enabled: false}").unwrap().unwrap();
    assert!(!disabled.allows("/livez"));
    for (text, expected) in [
        (
            "{enabled: false, conditions: [{path: /livez}]}",
            "line 3: anonymous.conditions: Invalid value: [\"/livez\"]: enabled should be set to true when conditions are defined",
        ),
        ("{enabled: true, conditions: [{}]}", "line 3: anonymous.conditions[0].path: Required value"),
        ("{enabled: 1}", "line 3: anonymous.enabled: Invalid value: \"number\": must be true or false"),
    ] {
        let errors = anonymous(text).unwrap_err();
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }
    let gate_off = Context { anonymous_conditions: false, ..context() };
    let errors = read(format!("{HEAD}anonymous: {{enabled: true}}\n").as_bytes(), &gate_off).unwrap_err();
    assert!(errors[0].text.starts_with("anonymous: Forbidden: anonymous is not supported when"));
}

#[test]
fn errors_of_block_yaml_have_line_numbers() {
    let text = "\
apiVersion: apiserver.config.svc.internal/v1beta1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: http://a.test
    audiences:
    - x
    - x
  claimValidationRules:
  - expression: >-
      claims.a ==
  claimMappings:
    username:
      claim: sub
  mapping: {}
";
    let got = errors_of_file(text);
    let lines: Vec<&str> = got.iter().map(|error| error.split(": ").next().unwrap_or_default()).collect();
    let fields: Vec<&str> = got.iter().filter_map(|error| error.split(": ").nth(1)).collect();
    assert_eq!(lines, ["line 4", "line 5", "line 8", "line 10", "line 13", "line 15"], "{got:#?}");
    assert_eq!(
        fields,
        [
            "jwt[0].issuer.audienceMatchPolicy",
            "jwt[0].issuer.url",
            "jwt[0].issuer.audiences[1]",
            "jwt[0].claimValidationRules[0].expression",
            "jwt[0].claimMappings.username.prefix",
            "strict decoding error",
        ]
    );
}
