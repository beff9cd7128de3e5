//! Libraries with types of their own as tables: expression, and its value, its mistake or its error.

use std::sync::Arc;

use expressions::{AUTHORIZER, Answer, Authorizer, Cost, Environment, Question, authorizer, functions};

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

fn check(environment: &Environment, table: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (source, want) in table {
        let got = outcome(environment, source);
        if got != *want {
            wrong.push(format!("{source}\n   want {want}\n   got  {got}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn urls() {
    check(
        &Environment::new(),
        &[
            ("isURL('https://a') && isURL('/abs') && isURL('mailto:x@y')", "true"),
            ("isURL('a')", "false"),
            ("isURL('../rel')", "false"),
            ("isURL('not a url')", "false"),
            ("isURL('https://a:b/')", "false"),
            ("isURL('https://a/%zz')", "false"),
            ("isURL('https://a b/')", "false"),
            ("url('https://a/b') == url('https://a/b')", "true"),
            ("url('HTTPS://a').getScheme()", "\"https\""),
            ("url('https://u:p@a:80/x').getHost()", "\"a:80\""),
            ("url('https://[::1]:80/').getHostname()", "\"::1\""),
            ("url('https://[::1]').getPort()", "\"\""),
            ("url('https://a:80').getPort()", "\"80\""),
            ("url('https://a/b c').getEscapedPath()", "\"/b%20c\""),
            ("url('https://a/b%20c').getEscapedPath()", "\"/b%20c\""),
            ("url('https://a?x=1&x=2&y=a+b').getQuery()", "{\"x\": [\"1\", \"2\"], \"y\": [\"a b\"]}"),
            ("url('/abs').getHost()", "\"\""),
            ("string(url('/abs'))", "\"/abs\""),
            ("url(1)", "compile: found no matching overload for 'url' applied to '(int)'"),
            (
                "url('a')",
                "error: URL parse error during conversion from string: parse \"a\": invalid URI for request",
            ),
        ],
    );
}

#[test]
fn addresses() {
    check(
        &Environment::new(),
        &[
            ("isIP('1.2.3.4') && isIP('::1') && !isIP('1.2.3')", "true"),
            ("isIP('::ffff:1.2.3.4')", "false"),
            ("isIP('fe80::1%eth0')", "false"),
            ("isIP('1.2.3.04')", "false"),
            ("ip('1.2.3.4') == ip('1.2.3.4')", "true"),
            ("ip('x')", "error: IP Address \"x\" parse error during conversion from string"),
            ("ip.isCanonical('2001:db8::') && !ip.isCanonical('2001:DB8::')", "true"),
            ("ip('::1').family() + ip('1.1.1.1').family()", "10"),
            ("ip('0.0.0.0').isUnspecified() && ip('127.0.0.1').isLoopback()", "true"),
            ("ip('224.0.0.1').isLinkLocalMulticast() && ip('ff02::1').isLinkLocalMulticast()", "true"),
            ("ip('224.1.0.1').isLinkLocalMulticast()", "false"),
            ("ip('169.254.1.1').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast()", "true"),
            ("ip('8.8.8.8').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()", "true"),
            ("string(ip('2001:DB8::'))", "\"2001:db8::\""),
            ("isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0')", "true"),
            ("isCIDR('::ffff:1.2.3.4/120') || isCIDR('fe80::1%eth0/64') || isCIDR('10.00.0.0/8')", "false"),
            ("isCIDR('10.0.0.1/8') || isCIDR('10.0.0.0/33') || isCIDR('10.0.0.0/08')", "false"),
            ("isCIDR('0.0.0.0/0') && isCIDR('::/0')", "true"),
            (
                "cidr('10.0.0.1/8')",
                "error: network address parse error during conversion from string: \"10.0.0.1/8\"",
            ),
            (
                "cidr('10.0.0.0/8').containsIP('10.1.1.1') && cidr('10.0.0.0/8').containsIP(ip('10.1.1.1'))",
                "true",
            ),
            ("cidr('10.0.0.0/8').containsIP('11.1.1.1')", "false"),
            ("cidr('0.0.0.0/0').containsIP('::1')", "false"),
            ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", "true"),
            ("cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))", "false"),
            ("cidr('10.0.0.0/8').ip() == ip('10.0.0.0')", "true"),
            ("cidr('10.0.0.0/8').masked() == cidr('10.0.0.0/8')", "true"),
            ("cidr('10.0.0.0/8').prefixLength()", "8"),
            (
                "ip('::1').prefixLength()",
                "compile: found no matching overload for 'prefixLength' applied to 'net.IP.()'",
            ),
        ],
    );
}

#[test]
fn quantities() {
    check(
        &Environment::new(),
        &[
            ("isQuantity('1Gi') && isQuantity('1e3') && isQuantity('.5') && isQuantity('+1.m')", "true"),
            (
                "isQuantity('x') || isQuantity('') || isQuantity('10Mb') || isQuantity('1.2.3') || isQuantity('1e')",
                "false",
            ),
            ("quantity('1k') == quantity('1000')", "true"),
            ("quantity('500m') == quantity('0.5')", "true"),
            ("quantity('1k').isInteger() && !quantity('50m').isInteger()", "true"),
            ("quantity('1k').asInteger()", "1000"),
            ("quantity('50m').asInteger()", "error: cannot convert value to integer"),
            ("quantity('50m').asApproximateFloat()", "0.05"),
            ("quantity('50.703k').asApproximateFloat()", "50703.0"),
            ("quantity('-1').sign()", "-1"),
            ("sign(quantity('-3'))", "-1"),
            ("quantity('1').add(1).compareTo(quantity('2'))", "0"),
            ("quantity('3').sub(quantity('1')).asInteger()", "2"),
            (
                "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1').isLessThan(quantity('2'))",
                "true",
            ),
            ("quantity('200M').compareTo(quantity('0.3G'))", "-1"),
            ("quantity('1E').asInteger()", "1000000000000000000"),
            ("quantity('100E').asInteger()", "9223372036854775807"),
            ("quantity('1e-12') == quantity('1n')", "true"),
            (
                "quantity('99999999999999999999999999999999999999999999e-40') == quantity('9999.999999999')",
                "false",
            ),
        ],
    );
}

#[test]
fn versions_are_for_stored_expressions_only() {
    check(
        &Environment::new(),
        &[("isSemver('1.2.3')", "compile: undeclared reference to 'isSemver' (in container '')")],
    );
    check(
        &Environment::stored(),
        &[
            ("isSemver('1.2.3')", "true"),
            ("isSemver('1.2')", "false"),
            ("isSemver('1.2', true)", "true"),
            ("isSemver('01.2.3')", "false"),
            ("isSemver('01.2.3', true)", "true"),
            ("isSemver('1.2.3-01')", "false"),
            ("semver('v1.2', true).minor()", "2"),
            ("semver('1.2.3').major() + semver('1.2.3').minor() + semver('1.2.3').patch()", "6"),
            ("semver('1.2.3').isLessThan(semver('1.3.0'))", "true"),
            ("semver('2.0.0').isGreaterThan(semver('1.3.0'))", "true"),
            ("semver('1.2.3').compareTo(semver('1.2.3'))", "0"),
            ("semver('1.0.0-alpha.2').isLessThan(semver('1.0.0-alpha.10'))", "true"),
            ("semver('1.0.0-alpha').isLessThan(semver('1.0.0'))", "true"),
            ("semver('x')", "error: \"x\" is not a semantic version"),
        ],
    );
}

#[test]
fn formats() {
    let valid = [
        ("dns1123Label", "ok-name", "Bad_"),
        ("dns1123Label", "1a", "-a"),
        ("dns1123Subdomain", "a.b-c.d", "a..b"),
        ("dns1035Label", "a1", "1a"),
        ("qualifiedName", "example.com/x", "/x"),
        ("qualifiedName", "A_b.c", "a/b/c"),
        ("dns1123LabelPrefix", "ok-", "-"),
        ("dns1123SubdomainPrefix", "a.b-", "a.-b-"),
        ("dns1035LabelPrefix", "a-", "1-"),
        ("labelValue", "", "a b"),
        ("uri", "/x", "x"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        ("byte", "aGk=", "aGk"),
        ("date", "2021-12-01", "2021-13-01"),
        ("datetime", "2021-01-01T00:00:00Z", "2021-01-01"),
    ];
    for (name, good, bad) in valid {
        check(
            &Environment::new(),
            &[
                (&format!("format.{name}().validate('{good}').hasValue()"), "false"),
                (&format!("format.{name}().validate('{bad}').hasValue()"), "true"),
                (&format!("format.named('{name}').value() == format.{name}()"), "true"),
            ],
        );
    }
    check(
        &Environment::new(),
        &[
            ("format.named('nope').hasValue()", "false"),
            ("format.dns1123Label().validate('Bad_').value().size()", "1"),
            (
                "format.dns1123Label().validate(1)",
                "compile: found no matching overload for 'validate' applied to 'format.Format.(int)'",
            ),
        ],
    );
}

/// Allows `create` of pods, fails for secrets, and says what it was asked.
struct Echo;

impl Authorizer for Echo {
    fn check(&self, question: &Question) -> Answer {
        let error = (question.resource == "secrets").then(|| "no decision".to_owned());
        let allowed = question.verb == "create" && question.resource == "pods";
        Answer { allowed, reason: format!("{question:?}"), error }
    }
}

#[test]
fn authorizers() {
    let environment = Environment::new().variable("authorizer", AUTHORIZER);
    let wanted = Question {
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
    let whole = "authorizer.serviceAccount('ns', 'sa').group('apps').resource('pods').subresource('log')\
                 .namespace('ns').name('n').fieldSelector('a=b').labelSelector('c').check('get').reason()";
    let path = Question { verb: "get".to_owned(), path: Some("/x".to_owned()), ..Question::default() };
    let table = [
        (
            "authorizer.group('').resource('pods').namespace('ns').check('create').allowed()",
            "true".to_owned(),
        ),
        ("authorizer.group('').resource('pods').check('get').allowed()", "false".to_owned()),
        ("authorizer.group('').resource('secrets').check('get').errored()", "true".to_owned()),
        ("authorizer.group('').resource('secrets').check('get').error()", "\"no decision\"".to_owned()),
        (whole, format!("{:?}", format!("{wanted:?}"))),
        ("authorizer.path('/x').check('get').reason()", format!("{:?}", format!("{path:?}"))),
    ];
    for (source, want) in table {
        let program = environment.compile(source).unwrap();
        let mut cost = Cost::limit(1_000_000);
        let value = program.evaluate(&[("authorizer", authorizer(Arc::new(Echo)))], &mut cost).unwrap();
        assert_eq!(format!("{value:?}"), want, "{source}");
        assert!(cost.used() > 350_000, "{source}: {}", cost.used());
    }
    assert_eq!(
        outcome(&environment, "authorizer.resource('pods')"),
        "compile: found no matching overload for 'resource' applied to 'authorizer.Authorizer.(string)'"
    );
}

/// The functions by release: `UPDATE=1` rewrites the list, whose changes are to be looked at.
#[test]
fn the_list_of_functions_is_golden() {
    let mut lines: Vec<String> = functions().map(|(since, text)| format!("{since:>2} {text}\n")).collect();
    lines.sort();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/functions.txt");
    let found = lines.concat();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), found);
}
