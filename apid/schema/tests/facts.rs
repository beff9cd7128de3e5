//! The type table `data/types.txt`, generated from `wire.csv` of the specification and compared.
//!
//! `UPDATE=1` writes the table. The specification is `docs/spec/wire.csv`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const HEADER: &str = "\
# Types of the API and their fields; made by `UPDATE=1 cargo test -p schema --test integration facts`, not by hand.
#
# A line that begins with a letter names a type; the lines after it are its fields, in the order of declaration:
#
#  <field> <type> <omitted> <protobuf> [<fact>…]     or     = <embedded type> <protobuf>
#
# type      *T pointer, []T list, {}T map with string keys; string(X) is the string type X, ResourceList a map of
#           quantities that are kept in thousandths
# omitted   when the field is left out: - never, e when it is empty, z when it is zero
# protobuf  number:wire type, or - when there is none; items is a message of the items of a list
# facts     required (in OpenAPI), list=, keys=, map=, patch=, key= (of the merge), default=;
#           validation tags: optional, minimum=;
#           sent-empty: a list that was sent empty stays
";

/// Types that the specification names without listing their fields, and types of kinds beyond the
/// specification.
const EXTRA_TYPES: &str = "\
apiextensions/v1.CustomResourceSubresourceStatus
apiextensions/v1beta1.CustomResourceSubresourceStatus
apiserverinternal/v1alpha1.StorageVersionSpec
explain/v1alpha1.AccessExplanation
 = meta/v1.TypeMeta -
 metadata meta/v1.ObjectMeta e 1:bytes
 spec authorization/v1.SubjectAccessReviewSpec - 2:bytes required
 status explain/v1alpha1.AccessExplanationStatus e 3:bytes
explain/v1alpha1.AccessExplanationStatus
 allowed bool - 1:varint required
 denied bool e 2:varint
 reason string e 3:bytes
 evaluationError string e 4:bytes
 authorizers []explain/v1alpha1.AuthorizerOpinion e 5:bytes list=atomic
 manifest string e 6:bytes
explain/v1alpha1.AuthenticatorOpinion
 name string - 1:bytes required
 outcome string - 2:bytes required
 check string e 3:bytes
 latencyMicroseconds int64 - 4:varint
explain/v1alpha1.AuthorizerOpinion
 name string - 1:bytes required
 type string - 2:bytes required
 verdict string - 3:bytes required
 reason string e 4:bytes
 evaluationError string e 5:bytes
 latencyMicroseconds int64 - 6:varint
 grant string e 7:bytes
 rule *rbac/v1.PolicyRule e 8:bytes
 nearestMisses []string e 9:bytes list=atomic
 moreNearestMisses int64 e 10:varint
explain/v1alpha1.TokenExplanation
 = meta/v1.TypeMeta -
 metadata meta/v1.ObjectMeta e 1:bytes
 spec explain/v1alpha1.TokenExplanationSpec - 2:bytes required
 status explain/v1alpha1.TokenExplanationStatus e 3:bytes
explain/v1alpha1.TokenExplanationSpec
 token string e 1:bytes
 audiences []string e 2:bytes list=atomic
explain/v1alpha1.TokenExplanationStatus
 authenticated bool - 1:varint required
 user *authentication/v1.UserInfo e 2:bytes
 audiences []string e 3:bytes list=atomic
 authenticators []explain/v1alpha1.AuthenticatorOpinion e 4:bytes list=atomic
 unverified *explain/v1alpha1.UnverifiedToken e 5:bytes
explain/v1alpha1.UnverifiedToken
 algorithm string e 1:bytes
 keyID string e 2:bytes
 issuer string e 3:bytes
 subject string e 4:bytes
 audiences []string e 5:bytes list=atomic
 notBefore *Time e 6:bytes
 expires *Time e 7:bytes
meta/v1.GroupVersionKind
 group string - 1:bytes
 version string - 2:bytes
 kind string - 3:bytes
meta/v1.GroupVersionResource
 group string - 1:bytes
 version string - 2:bytes
 resource string - 3:bytes
storagemigration/v1alpha1.GroupVersionResource
 group string e 1:bytes
 version string e 2:bytes
 resource string e 3:bytes
storagemigration/v1alpha1.MigrationCondition
 type string(storagemigration/v1alpha1.MigrationConditionType) - 1:bytes required
 status string(core/v1.ConditionStatus) - 2:bytes required
 lastUpdateTime Time e 3:bytes
 reason string e 4:bytes
 message string e 5:bytes
storagemigration/v1alpha1.StorageVersionMigration
 = meta/v1.TypeMeta -
 metadata meta/v1.ObjectMeta e 1:bytes
 spec storagemigration/v1alpha1.StorageVersionMigrationSpec e 2:bytes
 status storagemigration/v1alpha1.StorageVersionMigrationStatus e 3:bytes
storagemigration/v1alpha1.StorageVersionMigrationList
 = meta/v1.TypeMeta -
 metadata meta/v1.ListMeta e 1:bytes
 items []storagemigration/v1alpha1.StorageVersionMigration - 2:bytes required
storagemigration/v1alpha1.StorageVersionMigrationSpec
 resource storagemigration/v1alpha1.GroupVersionResource - 1:bytes required
 continueToken string e 2:bytes
storagemigration/v1alpha1.StorageVersionMigrationStatus
 conditions []storagemigration/v1alpha1.MigrationCondition e 1:bytes list=map keys=type patch=merge key=type
 resourceVersion string e 2:bytes
";

/// Types without rows in the specification, which have the fields of the same types in another version.
/// Each line has the version, the version with the same fields, and the names of the types.
const SAME_TYPES: &[(&str, &str, &[&str])] = &[
    (
        "admissionregistration/v1alpha1",
        "admissionregistration/v1beta1",
        &[
            "AuditAnnotation",
            "ExpressionWarning",
            "TypeChecking",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingAdmissionPolicyBindingList",
            "ValidatingAdmissionPolicyBindingSpec",
            "ValidatingAdmissionPolicyList",
            "ValidatingAdmissionPolicySpec",
            "ValidatingAdmissionPolicyStatus",
            "Validation",
        ],
    ),
    (
        "resource/v1alpha3",
        "resource/v1beta1",
        &[
            "AllocatedDeviceStatus",
            "AllocationResult",
            "BasicDevice",
            "Counter",
            "CounterSet",
            "Device",
            "DeviceAllocationConfiguration",
            "DeviceAllocationResult",
            "DeviceAttribute",
            "DeviceCapacity",
            "DeviceClaim",
            "DeviceClaimConfiguration",
            "DeviceClass",
            "DeviceClassConfiguration",
            "DeviceClassList",
            "DeviceClassSpec",
            "DeviceConfiguration",
            "DeviceConstraint",
            "DeviceCounterConsumption",
            "DeviceRequest",
            "DeviceRequestAllocationResult",
            "DeviceSubRequest",
            "DeviceToleration",
            "NetworkDeviceData",
            "OpaqueDeviceConfiguration",
            "ResourceClaim",
            "ResourceClaimConsumerReference",
            "ResourceClaimList",
            "ResourceClaimSpec",
            "ResourceClaimStatus",
            "ResourceClaimTemplate",
            "ResourceClaimTemplateList",
            "ResourceClaimTemplateSpec",
            "ResourcePool",
            "ResourceSlice",
            "ResourceSliceList",
            "ResourceSliceSpec",
        ],
    ),
];

/// Required fields that the specification does not mark as required, because they are in embedded types.
const REQUIRED: &[(&str, &str)] = &[("core/v1.EphemeralContainerCommon", "name")];

/// Validation tags of fields, in the types that also have declarative validation.
const VALIDATION_TAGS: &[(&str, &str, &str)] = &[
    ("core/v1.ReplicationControllerSpec", "minReadySeconds", "optional minimum=0"),
    ("core/v1.ReplicationControllerSpec", "replicas", "optional minimum=0"),
];

#[test]
fn type_table_matches_specification() {
    let specification = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/wire.csv");
    let table = generate(&fs::read_to_string(specification).unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/types.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &table).unwrap();
    }
    let checked_in = fs::read_to_string(&file).unwrap();
    for (i, (have, want)) in checked_in.lines().zip(table.lines()).enumerate() {
        assert_eq!(have, want, "line {}: run with UPDATE=1", i + 1);
    }
    assert_eq!(checked_in.len(), table.len());
}

#[test]
fn minimums_of_type_table_are_integers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/types.txt");
    let table = fs::read_to_string(file).unwrap();
    let fields = table.lines().filter(|line| line.starts_with(' '));
    let minimums: Vec<&str> = fields
        .flat_map(str::split_ascii_whitespace)
        .filter_map(|fact| fact.strip_prefix("minimum="))
        .collect();
    assert!(!minimums.is_empty());
    for minimum in minimums {
        assert!(minimum.parse::<i64>().is_ok(), "{minimum}");
    }
}

fn generate(csv: &str) -> String {
    let mut rows = csv.lines().map(columns);
    let names = rows.next().unwrap();
    let mut types: BTreeMap<String, Vec<BTreeMap<String, String>>> = BTreeMap::new();
    for row in rows {
        let row: BTreeMap<String, String> = names.iter().cloned().zip(row).collect();
        types.entry(row["type"].clone()).or_default().push(row);
    }
    let mut blocks: BTreeMap<String, String> = BTreeMap::new();
    for block in EXTRA_TYPES.split_inclusive('\n') {
        match block.strip_prefix(' ') {
            None => drop(blocks.insert(block.trim_end().to_owned(), String::new())),
            Some(_) => blocks.last_entry().unwrap().get_mut().push_str(block),
        }
    }
    let known: BTreeSet<String> = types.keys().chain(blocks.keys()).cloned().collect();
    for (name, fields) in &types {
        let lines = fields.iter().map(|row| field_line(name, row, &known)).collect();
        blocks.insert(name.clone(), lines);
    }
    for (version, same, names) in SAME_TYPES {
        for name in *names {
            let fields = blocks[&format!("{same}.{name}")]
                .lines()
                .map(|line| replace_version(line, version, same, &blocks));
            let fields: String = fields.collect();
            assert!(blocks.insert(format!("{version}.{name}"), fields).is_none(), "{version}.{name}");
        }
    }
    let mut out = HEADER.to_owned();
    for (name, fields) in blocks {
        write!(out, "{name}\n{fields}").unwrap();
    }
    out
}

/// Returns a field line of the version `same` with the type names of `version`.
fn replace_version(line: &str, version: &str, same: &str, blocks: &BTreeMap<String, String>) -> String {
    let has_own_version = |ty: &str| {
        let is_in_row =
            |(row_version, _, names): &(&str, &str, &[&str])| *row_version == version && names.contains(&ty);
        SAME_TYPES.iter().any(is_in_row) || blocks.contains_key(&format!("{version}.{ty}"))
    };
    let ty = |rest: &str| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(&format!("{same}.")) {
        let name = ty(after);
        // A string type in parentheses needs no fields.
        let package = if has_own_version(&name) || before.ends_with("string(") { version } else { same };
        write!(out, "{before}{package}.").unwrap();
        rest = after;
    }
    writeln!(out, "{rest}").unwrap();
    out
}

/// String types that the specification lists as plain strings.
const STRING_TYPES: [(&str, &str, &str); 7] = [
    ("batch/v1.UncountedTerminatedPods", "succeeded", "types.UID"),
    ("batch/v1.UncountedTerminatedPods", "failed", "types.UID"),
    ("apps/v1.StatefulSetCondition", "type", "apps/v1.StatefulSetConditionType"),
    ("core/v1.AttachedVolume", "name", "core/v1.UniqueVolumeName"),
    ("core/v1.NodeStatus", "volumesInUse", "core/v1.UniqueVolumeName"),
    ("discovery/v1.EndpointSlice", "addressType", "discovery/v1.AddressType"),
    ("networking/v1.HTTPIngressPath", "pathType", "networking/v1.PathType"),
];

/// Lists where an empty value differs from an absent one: it replaces the default, or messages show it.
///
/// Validation refuses these lists when they are empty, so no stored object has them.
const SENT_EMPTY: [(&str, &str); 3] = [
    ("apiserverinternal/v1alpha1.ServerStorageVersion", "decodableVersions"),
    ("autoscaling/v2.HPAScalingRules", "policies"),
    ("batch/v1.PodFailurePolicyOnExitCodesRequirement", "values"),
];

/// Types whose field `uid` is a plain string, because the uid of a user can have any format.
const PLAIN_UIDS: [&str; 4] = [
    "authentication/v1.UserInfo",
    "authentication/v1beta1.UserInfo",
    "authorization/v1.SubjectAccessReviewSpec",
    "certificates/v1.CertificateSigningRequestSpec",
];

/// The string type of a field that the specification lists as a plain string.
fn string_type(owner: &str, field: &str) -> String {
    if field == "uid" && !PLAIN_UIDS.contains(&owner) {
        return "string(types.UID)".to_owned();
    }
    let row = STRING_TYPES.iter().find(|(type_name, name, _)| (*type_name, *name) == (owner, field));
    row.map_or_else(|| "string".to_owned(), |(_, _, name)| format!("string({name})"))
}

fn field_line(owner: &str, row: &BTreeMap<String, String>, known: &BTreeSet<String>) -> String {
    let mut base = resolve(owner, &row["base"], known);
    // The reference rounds amounts of the core group only.
    if (owner, row["field"].as_str()) == ("node/v1.Overhead", "podFixed") {
        base = "{}Quantity".to_owned();
    }
    if base == "string" {
        base = string_type(owner, &row["field"]);
    }
    let mut protobuf = if row["protobuf"].is_empty() { "-".to_owned() } else { row["protobuf"].clone() };
    // In Protobuf, a list with a named type is a message.
    if row["shape"] == "value" && row["base"] == "list of string" {
        protobuf = protobuf.replace(":bytes", ":items");
    }
    if row["field"] == "(inline)" {
        return format!(" = {base} {protobuf}\n");
    }
    let shape = match row["shape"].as_str() {
        "value" => "",
        "pointer" => "*",
        "list" => "[]",
        "map" => "{}",
        other => panic!("shape {other}"),
    };
    let omitted = match row["omitted_when"].as_str() {
        "never" => "-",
        "empty" => "e",
        "zero" => "z",
        other => panic!("omitted {other}"),
    };
    let mut line = format!(" {} {shape}{base} {omitted} {protobuf}", row["field"]);
    if row["openapi"] == "required" || REQUIRED.contains(&(owner, &row["field"])) {
        line.push_str(" required");
    }
    for (fact, column) in [
        ("list", "list_type"),
        ("keys", "list_map_keys"),
        ("map", "map_type"),
        ("patch", "patch_strategy"),
        ("key", "patch_merge_key"),
        ("default", "default"),
    ] {
        if !row[column].is_empty() {
            write!(line, " {fact}={}", row[column]).unwrap();
        }
    }
    if SENT_EMPTY.contains(&(owner, &row["field"])) {
        line.push_str(" sent-empty");
    }
    let tags =
        VALIDATION_TAGS.iter().find(|(type_name, field, _)| (*type_name, *field) == (owner, &row["field"]));
    if let Some((.., tags)) = tags {
        write!(line, " {tags}").unwrap();
    }
    line.push('\n');
    line
}

/// The table name of a base type. The specification writes some names of other packages as names of core/v1
/// or of the owner's package.
fn resolve(owner: &str, base: &str, known: &BTreeSet<String>) -> String {
    const SCALARS: &[&str] = &[
        "string",
        "bool",
        "int32",
        "int64",
        "float64",
        "bytes",
        "Time",
        "MicroTime",
        "Quantity",
        "IntOrString",
        "RawExtension",
        "FieldsV1",
        "interface{}",
    ];
    if base == "map of Quantity" {
        return "ResourceList".to_owned();
    }
    for (prefix, sign) in [("list of ", "[]"), ("map of ", "{}")] {
        if let Some(element) = base.strip_prefix(prefix) {
            return format!("{sign}{}", resolve(owner, element, known));
        }
    }
    let is_known = |name: &str| {
        SCALARS.contains(&name)
            || known.contains(name)
            || (name.starts_with("string(") && name.ends_with(')'))
            || name.ends_with(".JSON")
            || name.contains(".JSONSchemaPropsOr")
    };
    let (package, name) = base.rsplit_once('.').unwrap_or(("", base));
    let owner_package = owner.rsplit_once('.').unwrap().0;
    let candidates = [
        base.to_owned(),
        match base {
            "meta/v1.Time" => "Time".to_owned(),
            "runtime.Unknown" => "RawExtension".to_owned(),
            "core/v1.ReinvocationPolicyType" => {
                "string(admissionregistration/v1.ReinvocationPolicyType)".to_owned()
            }
            "core/v1.CoordinatedLeaseStrategy" => {
                "string(coordination/v1.CoordinatedLeaseStrategy)".to_owned()
            }
            _ => format!("{owner_package}.{name}"),
        },
        format!("meta/v1.{name}"),
        format!("authentication/v1.{name}"),
        format!("admissionregistration/v1.{name}"),
    ];
    let resolved = candidates.into_iter().find(|name| is_known(name));
    resolved.unwrap_or_else(|| panic!("{owner}: unknown type {package}.{name}"))
}

/// Splits a line of comma-separated values into columns, and removes the quotes.
fn columns(line: &str) -> Vec<String> {
    let mut columns = vec![String::new()];
    let mut is_quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                chars.next();
                columns.last_mut().unwrap().push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => columns.push(String::new()),
            _ => columns.last_mut().unwrap().push(c),
        }
    }
    columns
}
