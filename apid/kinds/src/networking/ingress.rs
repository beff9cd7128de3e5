//! Ingress: routes HTTP hosts and paths to services.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::ingress_rules;
use crate::table::cell::{NONE, PathReader, first_three, load_balancer};
use crate::table::{AGE, NAME};
use crate::validation::address_form;
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ing"],
    subresources: &[Subresource::status("Ingress")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::full(Revalidation::MainResource),
        generation: Generation::Counted(&[]),
        // `validate_update` applies all rules except that of the class annotation.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Class", "Ingress class.").text_or("spec.ingressClassName", NONE),
        Column::text("Hosts", "Hosts of the rules."),
        Column::text("Address", "Addresses of the load balancer."),
        Column::text("Ports", "Ports of the load balancer."),
        AGE,
    ],
    cells,
    strategy: &Ingress,
    ..BuiltInKind::namespaced("networking/v1.Ingress", "ingresses")
};

struct Ingress;

impl Strategy for Ingress {
    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = ingress_rules::validate_class_annotation(object, ctx);
        errors.extend(ingress_rules::validate(object));
        errors
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => ingress_rules::validate_status(new),
            _ => ingress_rules::validate(new),
        }
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        if ctx.subresource == "status" {
            return address_form::balancer_status(new);
        }
        let warning = old.is_none().then(|| ingress_rules::class_annotation_warning(new, ctx)).flatten();
        warning.into_iter().collect()
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let hosts = object.items("spec.rules").iter().map(|rule| rule.text("host"));
    let hosts: Vec<String> = hosts.filter(|host| !host.is_empty()).map(str::to_owned).collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { first_three(&hosts, ",") };
    let ports = if object.items("spec.tls").is_empty() { "80" } else { "80, 443" };
    vec![json!(hosts), json!(load_balancer(object)), json!(ports)]
}
