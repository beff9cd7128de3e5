//! CronJob: creates jobs on a schedule.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::{job_spec, schedule};
use crate::defaults::{fill, fill_text, part};
use crate::pods;
use crate::table::cell::{NONE, PathReader, UNSET, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, template_cells};
use crate::table::{AGE, NAME, Source, since};
use crate::validation::{Field, number, text};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["cj"],
    categories: &["all"],
    subresources: &[Subresource::status("CronJob")],
    rules: WriteRules {
        metadata_checks: MetadataChecks { changes: Revalidation::MainResource, ..MetadataChecks::CHANGES },
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Schedule", "Schedule in cron format.").text_at("spec.schedule"),
        Column::text("Timezone", "Time zone of the schedule.").text_or("spec.timeZone", NONE),
        Column::boolean("Suspend", "Whether the controller starts no jobs."),
        Column::integer("Active", "Number of running jobs.").with_source(Source::Length("status.active")),
        Column::text("Last Schedule", "Time since the last start of a job."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells,
    strategy: &CronJob,
    ..BuiltInKind::namespaced("batch/v1.CronJob", "cronjobs")
};

struct CronJob;

impl Strategy for CronJob {
    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        if !ctx.subresource.is_empty() {
            return Vec::new();
        }
        let mut warnings: Vec<String> = pods::warnings::workload_name(new, old).into_iter().collect();
        warnings.extend(job_spec::warnings(new, old, "spec.jobTemplate.spec", ctx.names));
        if old.is_some() && new.text("spec.schedule").contains("TZ") {
            warnings.push("cannot use TZ or CRON_TZ in spec.schedule, use timeZone instead".to_owned());
        }
        warnings
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            fill_text(spec, "concurrencyPolicy", "Allow");
            fill(spec, "suspend", false);
            fill(spec, "successfulJobsHistoryLimit", 3);
            fill(spec, "failedJobsHistoryLimit", 1);
        }
        pods::defaults::template(object, "spec.jobTemplate.spec.template", ctx.names);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = validate_spec(object, None, ctx.names);
        if object.name().len() > NAME_MAX {
            let detail = format!("must be no more than {NAME_MAX} characters");
            errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), object.name(), &detail));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" {
            FieldErrors::new()
        } else {
            validate_spec(new, Some(old), ctx.names)
        }
    }
}

/// Maximum length, in bytes, of the name of a cron job. Job names consist of this name and a suffix, and are
/// limited to 63 bytes.
const NAME_MAX: usize = 52;

fn validate_spec(object: &Object, old: Option<&Object>, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    validate_schedule(&spec, old, &mut errors);
    number::check_not_negative(&spec.child("startingDeadlineSeconds"), &mut errors);
    let zone = spec.child("timeZone");
    let is_unchanged = old.is_some_and(|old| old.find("spec.timeZone") == object.find("spec.timeZone"));
    if zone.is_present() && !is_unchanged {
        schedule::validate_zone(&zone, &mut errors);
    }
    text::require_supported(&spec.child("concurrencyPolicy"), &["Allow", "Forbid", "Replace"], &mut errors);
    validate_job_template(&spec.child("jobTemplate"), names, &mut errors);
    for limit in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        number::check_not_negative(&spec.child(limit), &mut errors);
    }
    errors
}

/// Validates the schedule. The schedule may contain a time zone only if the stored schedule contains one.
fn validate_schedule(spec: &Field<'_, '_>, old: Option<&Object>, errors: &mut FieldErrors) {
    let field = spec.child("schedule");
    if field.text().is_empty() {
        errors.push(field.required(""));
        return;
    }
    schedule::validate(&field, errors);
    if !field.text().contains("TZ") {
        return;
    }
    let is_zone_allowed = old.is_some_and(|old| old.text("spec.schedule").contains("TZ"));
    if !is_zone_allowed {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(field.invalid(detail));
    } else if spec.child("timeZone").is_present() {
        errors.push(field.invalid("cannot use both timeZone field and TZ or CRON_TZ in schedule"));
    }
}

fn validate_job_template(template: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let spec = template.child("spec");
    job_spec::validate(&spec, names, errors);
    let (selector, manual) = (spec.child("selector"), spec.child("manualSelector"));
    if selector.is_present() {
        errors.push(selector.invalid("`selector` will be auto-generated"));
    }
    if manual.flag() {
        errors.push(manual.not_supported(&["nil", "false"]));
    }
}

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let suspend = match object.find("spec.suspend") {
        Some(Value::Bool(true)) => "True",
        Some(Value::Bool(false)) => "False",
        _ => UNSET,
    };
    let last = match object.text("status.lastScheduleTime") {
        "" => NONE.to_owned(),
        time => since(time, clock),
    };
    let selector = selector(object, "spec.jobTemplate.spec.selector");
    let mut cells = vec![json!(suspend), json!(last)];
    cells.extend(template_cells(object, "spec.jobTemplate.spec.template", selector));
    cells
}
