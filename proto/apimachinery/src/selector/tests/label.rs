//! Tests of label selectors: operators, canonical form and errors.

use super::*;

type Labels = &'static [(&'static str, &'static str)];

fn selects(text: &str, labels: Labels) -> bool {
    let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
}

#[test]
fn label_selector_operators_match_labels() {
    const NONE: Labels = &[];
    const WEB: Labels = &[("app", "web"), ("tier", ""), ("n", "5")];
    for (text, none, web) in [
        ("", true, true),
        ("  ", true, true),
        ("app", false, true),
        ("!app", true, false),
        (" ! app ", true, false),
        ("app=web", false, true),
        ("app==web", false, true),
        ("app = web", false, true),
        ("app=db", false, false),
        ("app!=web", true, false),
        ("app!=db", true, true),
        ("app in (web)", false, true),
        ("app in (db , web )", false, true),
        ("app in(db,web)", false, true),
        ("app in (db)", false, false),
        ("app notin (db)", true, true),
        ("app notin (web,db)", true, false),
        ("tier=", false, true),
        ("tier=,app", false, true),
        ("tier in ()", false, true),
        ("tier in (,x)", false, true),
        ("tier in (x,)", false, true),
        ("tier in (x,,y)", false, true),
        ("app notin ()", true, true),
        ("n>4", false, true),
        ("n > 5", false, false),
        ("n<6", false, true),
        ("app>1", false, false),
        ("app,tier,!zone", false, true),
        ("app\t=\nweb\r,tier", false, true),
        ("in", false, false),
        ("!in,!notin", true, true),
        ("in in (in)", false, false),
        ("app=in", false, false),
    ] {
        assert_eq!(selects(text, NONE), none, "{text:?} without labels");
        assert_eq!(selects(text, WEB), web, "{text:?} with labels");
    }
}

#[test]
fn label_selector_key_order_makes_no_difference() {
    let parse = |text| LabelSelector::parse(text).unwrap();
    assert_eq!(parse("b=1,a in (y,x,x)"), parse("a in (x,y),b==1"));
    assert_ne!(parse("a=1"), parse("a!=1"));
}

#[test]
fn label_selector_errors_match_reference() {
    for (text, want) in [
        ("app===", "unable to parse requirement: found '=', expected: identifier"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        ("a in (b),", "found '', expected: identifier after ','"),
    ] {
        let error = LabelSelector::parse(text).unwrap_err();
        assert_eq!(error.to_string(), want, "{text}");
    }
    for (text, start) in [
        (
            "a/b/c=d",
            "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a qualified name must consist of",
        ),
        ("-a", "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of"),
        ("a\0b", "unable to parse requirement: <nil>: Invalid value: \"a\\x00b\": name part must consist of"),
        (
            "a=b@",
            "unable to parse requirement: values[0][a]: Invalid value: \"b@\": a valid label must be an empty",
        ),
        ("a in (-,b,+)", "unable to parse requirement: [values[0][a]: Invalid value: \"+\": a valid label"),
        (
            "a>b",
            "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value",
        ),
        (
            "a>",
            "unable to parse requirement: values[0]: Invalid value: \"\": for 'Gt', 'Lt' operators, the value",
        ),
    ] {
        let error = LabelSelector::parse(text).expect_err(text);
        assert!(error.to_string().starts_with(start), "{text}: {error}");
    }
}

#[test]
fn label_selector_requirements_are_canonical_and_never_narrower() {
    let requirement = |key: &str, operator, values: &[&str]| Requirement {
        key: key.to_owned(),
        operator,
        values: values.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(
        LabelSelector::parse("e>1,d,c notin (z,y),b!=2,a=1,!f,g<3").unwrap().requirements(),
        ParsedSelector::Requirements(vec![
            requirement("a", Operator::In, &["1"]),
            requirement("b", Operator::NotIn, &["2"]),
            requirement("c", Operator::NotIn, &["y", "z"]),
            requirement("d", Operator::Exists, &[]),
            requirement("f", Operator::DoesNotExist, &[]),
        ])
    );
}
