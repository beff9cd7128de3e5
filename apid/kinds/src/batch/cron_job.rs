//! CronJob: creates jobs on a schedule.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{fill, fill_text, part};
use crate::pods;
use crate::table::cell::{NONE, PathReader, UNSET, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, of_template};
use crate::table::{AGE, NAME, since};
use crate::{
    Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "batch",
    versions: &["v1"],
    kind: "CronJob",
    resource: "cronjobs",
    singular: "cronjob",
    short_names: &["cj"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("CronJob")],
    schema: "batch/v1.CronJob",
    strategy: &CronJob,
};

struct CronJob;

impl Strategy for CronJob {
    fn warnings(&self, new: &Object, old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, old, "spec.jobTemplate.spec.template")
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            fill_text(spec, "concurrencyPolicy", "Allow");
            fill(spec, "suspend", false);
            fill(spec, "successfulJobsHistoryLimit", 3);
            fill(spec, "failedJobsHistoryLimit", 1);
        }
        pods::defaults::template(object, "spec.jobTemplate.spec.template");
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Schedule", "When jobs start."),
        Column::text("Timezone", "The time zone of the schedule."),
        Column::boolean("Suspend", "Whether no jobs start for now."),
        Column::integer("Active", "Jobs that run."),
        Column::text("Last Schedule", "Time since a job last started."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let suspend = match object.find("spec.suspend") {
            Some(Value::Bool(true)) => "True",
            Some(Value::Bool(false)) => "False",
            _ => UNSET,
        };
        let last = match object.text("status.lastScheduleTime") {
            "" => NONE.to_owned(),
            time => since(time, clock),
        };
        let mut cells = vec![
            json!(object.name()),
            json!(object.text("spec.schedule")),
            json!(object.text_or("spec.timeZone", NONE)),
            json!(suspend),
            json!(object.items("status.active").len()),
            json!(last),
        ];
        cells.extend(of_template(
            object,
            clock,
            "spec.jobTemplate.spec.template",
            selector(object, "spec.jobTemplate.spec.selector"),
        ));
        cells
    },
};
