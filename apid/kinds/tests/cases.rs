//! Table tests of every stored kind: one test for each file `testdata/<resource>.yaml`, which must exist.
//! `cargo test -p kinds leases` runs the cases of one file.
//!
//! A case has a `name` and either creates the object `create`, or stores `old` and replaces it with `update`.
//! The field `subresource` names the subresource to which the update is sent. The default object name is `x`,
//! the default namespace is `team`. The test compares the result with
//!
//! - `errors`: all validation errors in order; or `refused`: the error of a value of a wrong type;
//! - `want`: all fields outside metadata, and the given metadata fields (`null`: absent);
//! - `cells`: Table cells one hour after creation; `fields`: selectable fields; `warnings`.
//!
//! The test also checks that defaulting is idempotent, and that an update of a created object without changes
//! is accepted and changes nothing.
//!
//! `names: svc` uses the neutral names with the domain `example.test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::codec::{Limits, yaml};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::time;
use kinds::entry::{self, Decoder};
use kinds::{Context, Kind, Registry, Source};
use storage::Revision;
use storage::cache::Decode as _;

const CREATED: &str = "2024-01-02T03:04:05Z";

macro_rules! case_files {
    ($($resource:ident,)*) => {
        /// Resources with a case file, in the order of their names.
        const FILES: &[&str] = &[$(stringify!($resource)),*];

        $(#[test]
        fn $resource() {
            check_file(stringify!($resource));
        })*
    };
}

/// One test for each file.
mod kind_matches_testdata_cases {
    use super::check_file;

    case_files! {
        apiservices,
        certificatesigningrequests,
        clusterrolebindings,
        clusterroles,
        componentstatuses,
        configmaps,
        controllerrevisions,
        cronjobs,
        csidrivers,
        csinodes,
        csistoragecapacities,
        customresourcedefinitions,
        daemonsets,
        deployments,
        endpoints,
        endpointslices,
        events,
        flowschemas,
        horizontalpodautoscalers,
        ingressclasses,
        ingresses,
        ipaddresses,
        jobs,
        leases,
        limitranges,
        mutatingwebhookconfigurations,
        namespaces,
        networkpolicies,
        nodes,
        persistentvolumeclaims,
        persistentvolumes,
        poddisruptionbudgets,
        pods,
        podtemplates,
        priorityclasses,
        prioritylevelconfigurations,
        replicasets,
        replicationcontrollers,
        resourcequotas,
        rolebindings,
        roles,
        runtimeclasses,
        secrets,
        serviceaccounts,
        servicecidrs,
        services,
        statefulsets,
        storageclasses,
        validatingadmissionpolicies,
        validatingadmissionpolicybindings,
        validatingwebhookconfigurations,
        volumeattachments,
    }

    #[test]
    fn every_case_file_and_every_stored_kind_has_a_test() {
        let mut files: Vec<String> = super::case_file_names();
        files.sort();
        assert_eq!(files, FILES, "list the files of `testdata` in `case_files!`");
        let mut kinds = super::stored_resources();
        kinds.sort();
        kinds.dedup();
        assert_eq!(kinds, FILES, "each stored kind has the file testdata/RESOURCE.yaml");
    }
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn case_file_names() -> Vec<String> {
    let files = fs::read_dir(testdata()).unwrap().map(|file| file.unwrap().path());
    files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn stored_resources() -> Vec<String> {
    let names = Names::new(Preset::Kubernetes, "example.test").unwrap();
    Registry::new(&names).stored().map(|resource| resource.plural().to_owned()).collect()
}

/// Runs all cases of a file and reports every difference.
fn check_file(name: &str) {
    let file = testdata().join(format!("{name}.yaml"));
    let cases = yaml::decode(&fs::read(&file).unwrap(), Limits::BODY).unwrap();
    assert_eq!(cases.duplicates, [""; 0], "{}", file.display());
    let names = Names::new(Preset::Kubernetes, "example.test").unwrap();
    let registry = Registry::new(&names);
    let mut differences = Vec::new();
    for resource in registry.stored().filter(|resource| resource.plural() == name) {
        for case in cases.value.as_array().unwrap() {
            let title = case["name"].as_str().unwrap();
            let found = Case::new(resource, case).run();
            differences.extend(found.into_iter().map(|difference| format!("{title}: {difference}")));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn generated_name_is_accepted_where_a_name_is() {
    let names = Names::new(Preset::Kubernetes, "example.test").unwrap();
    let registry = Registry::new(&names);
    let (mut differences, mut count) = (Vec::new(), 0);
    for file in case_file_names() {
        let bytes = fs::read(testdata().join(format!("{file}.yaml"))).unwrap();
        let cases = yaml::decode(&bytes, Limits::BODY).unwrap().value;
        for resource in registry.stored().filter(|resource| resource.plural() == file) {
            for value in cases.as_array().unwrap() {
                let has_name = value["create"]["metadata"].get("name").is_some();
                let case = Case::new(resource, value);
                let is_accepted =
                    |value: &Value| case.create(value).is_ok_and(|(_, errors)| errors.is_empty());
                if has_name || !value["create"].is_object() || !is_accepted(&value["create"]) {
                    continue;
                }
                let mut prefixed = value["create"].clone();
                prefixed["metadata"]["generateName"] = "x-".into();
                count += 1;
                if let Err(errors) | Ok((_, errors)) = case.create(&prefixed).map_err(|error| vec![error])
                    && !errors.is_empty()
                {
                    differences.push(format!("{file}: {}: {errors:?}", value["name"]));
                }
            }
        }
    }
    assert!(count > 100, "{count} objects");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

struct Case<'a> {
    case: &'a Value,
    names: Names,
    resource: Arc<Kind>,
    clock: ManualClock,
    rng: SeededRng,
}

impl<'a> Case<'a> {
    fn new(resource: &Kind, case: &'a Value) -> Self {
        let preset = if case["names"] == "svc" { Preset::Svc } else { Preset::Kubernetes };
        let names = Names::new(preset, "example.test").unwrap();
        let group = names.group(resource.stem().unwrap());
        let resource = Arc::clone(Registry::new(&names).find_kind(&group, resource.name()).unwrap());
        let clock = ManualClock::at(time::parse(CREATED).unwrap());
        Case { case, names, resource, clock, rng: SeededRng::new(1) }
    }

    fn context<'c>(&'c self, subresource: &'c str) -> Context<'c> {
        Context { names: &self.names, clock: &self.clock, rng: &self.rng, subresource }
    }

    /// Runs the case and returns the differences.
    fn run(&self) -> Vec<String> {
        let result = match &self.case["update"] {
            Value::Null => self.create(&self.case["create"]).map(|(object, errors)| (object, errors, None)),
            update => {
                let (old, errors) = self.create(&self.case["old"]).unwrap();
                assert_eq!(errors, [""; 0], "the old object");
                self.update(update, &old).map(|(object, errors)| (object, errors, Some(old)))
            }
        };
        match result {
            Err(error) if self.case["refused"] == error.as_str() => Vec::new(),
            Err(error) => vec![format!("rejected: {error}")],
            Ok(_) if self.case["refused"].is_string() => {
                vec!["accepted, but an error is expected".to_owned()]
            }
            Ok((object, errors, old)) => self.compare(&object, &errors, old.as_ref()),
        }
    }

    fn object(&self, value: &Value) -> Object {
        let mut object = Object::from_value(value.clone()).unwrap();
        object.set_type(&self.resource.api_version(), self.resource.name());
        if object.name().is_empty() && object.meta_str("generateName").is_empty() {
            object.set_meta("name", "x");
        }
        object
    }

    fn create(&self, value: &Value) -> Result<(Object, Vec<String>), String> {
        let ctx = self.context("");
        let mut object = self.object(value);
        let conformed = self.resource.conform(&mut object).map_err(|e| e.to_string())?;
        assert_eq!(conformed.unknown, [""; 0]);
        self.resource.default(&mut object, &ctx);
        let once = object.clone();
        self.resource.default(&mut object, &ctx);
        assert_eq!(object, once, "the second defaulting changes nothing");
        self.resource.prepare_create(&mut object, "team", &ctx);
        let (once, uid) = (object.clone(), object.uid().to_owned());
        self.resource.prepare_create_with_uid(&mut object, "team", &uid, &ctx);
        assert_eq!(object, once, "the second preparation changes nothing");
        self.resource.complete_new(&mut object, &ctx);
        self.resource.canonicalize(&mut object, &ctx);
        let errors = self.resource.validate_create(&object, &ctx);
        Ok((object, errors.iter().map(ToString::to_string).collect()))
    }

    fn update(&self, value: &Value, old: &Object) -> Result<(Object, Vec<String>), String> {
        let ctx = self.context(self.case["subresource"].as_str().unwrap_or(""));
        let mut object = self.object(value);
        object.set_meta("namespace", old.namespace());
        self.resource.conform(&mut object).map_err(|e| e.to_string())?;
        self.resource.default(&mut object, &ctx);
        self.resource.prepare_update(&mut object, old, &ctx);
        self.resource.canonicalize(&mut object, &ctx);
        let errors = self.resource.validate_update(&object, old, &ctx);
        Ok((object, errors.iter().map(ToString::to_string).collect()))
    }

    /// Writes a stored object without a change, and returns the differences.
    fn update_unchanged(&self, old: &Object) -> Vec<String> {
        let ctx = self.context("");
        let mut new = old.clone();
        self.resource.default(&mut new, &ctx);
        self.resource.prepare_update(&mut new, old, &ctx);
        self.resource.canonicalize(&mut new, &ctx);
        let errors = self.resource.validate_update(&new, old, &ctx);
        let mut differences: Vec<String> =
            errors.iter().map(|error| format!("update without a change: {error}")).collect();
        if new != *old {
            differences.push(format!("update without a change: {:?}, expected {old:?}", new));
        }
        differences
    }

    fn compare(&self, object: &Object, errors: &[String], old: Option<&Object>) -> Vec<String> {
        let case = self.case;
        let expected = strings(&case["errors"]);
        if errors != expected {
            return vec![format!(
                "errors:\n  {}\nexpected:\n  {}",
                errors.join("\n  "),
                expected.join("\n  ")
            )];
        }
        if !expected.is_empty() {
            return Vec::new();
        }
        let mut differences = if old.is_none() { self.update_unchanged(object) } else { Vec::new() };
        let mut differ = |field: &str, have: Value, want: &Value| {
            if have != *want {
                differences.push(format!("{field}: {have}, expected {want}"));
            }
        };
        // The stored object is in stored form.
        let mut again = object.clone();
        assert_eq!(self.resource.conform(&mut again).unwrap().unknown, [""; 0]);
        differ("stored form", object.clone().into_value(), &again.into_value());
        if let Value::Object(want) = &case["want"] {
            let mut have = object.0.clone();
            let mut want = want.clone();
            have.retain(|key, _| !matches!(key.as_str(), "kind" | "apiVersion" | "metadata"));
            for (field, value) in want.remove("metadata").iter().filter_map(Value::as_object).flatten() {
                let have = object.meta().unwrap().get(field).cloned().unwrap_or(Value::Null);
                differ(&format!("metadata.{field}"), have, value);
            }
            differ("object", Value::Object(have), &Value::Object(want));
        }
        if !case["cells"].is_null() {
            self.clock.advance(Duration::from_secs(3600));
            let row = self.resource.row().unwrap();
            let cells = self.resource.cells(object, &self.clock, &self.names);
            let computed = row.columns.iter().filter(|column| column.source == Source::Computed);
            assert_eq!((row.cells)(object, &self.clock).len(), computed.count());
            differ("cells", Value::Array(cells), &case["cells"]);
        }
        let stored = entry::encode(object);
        let decoder = Decoder::new(&self.resource);
        let entry = decoder.decode("", &stored).unwrap();
        let entry_of_object = decoder.entry_of(object, &stored).unwrap();
        for (field, value) in case["fields"].as_object().into_iter().flatten() {
            differ(field, entry.field(field).into(), value);
        }
        for field in &self.resource.fields.names {
            differ(field, entry.field(field).into(), &entry_of_object.field(field).into());
            differ(field, entry.field(field).into(), &self.resource.strategy().field(object, field).into());
        }
        let mut versioned = object.clone();
        versioned.set_meta("resourceVersion", "7");
        assert_eq!(entry.object(Revision(7)).unwrap(), versioned, "a round trip");
        let warnings = self.resource.warnings(object, old, &self.context(""));
        differ("warnings", warnings.into(), &strings(&case["warnings"]).into());
        differences
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|s| s.as_str().unwrap().to_owned()).collect()
}
