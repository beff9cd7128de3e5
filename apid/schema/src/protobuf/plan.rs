//! The Protobuf encoding plan of a type: its fields by number, with the nesting of embedded types.

/// The fields of a message, sorted by number.
#[derive(Debug)]
pub(crate) struct Plan(pub(super) Box<[(u32, PlanStep)]>);

/// A field of a message.
#[derive(Debug)]
pub(super) enum PlanStep {
    /// The index of a field in the schema.
    Field(usize),
    /// An embedded type, whose fields JSON has beside the other fields.
    Embedded(Plan),
}

impl Plan {
    /// The plan for the fields of a schema with these field numbers, in the order of the schema.
    pub(crate) fn new<'t>(tags: impl Iterator<Item = &'t [u32]>) -> Self {
        let all: Vec<_> = tags.enumerate().map(|(index, tags)| (tags, index)).collect();
        Plan::from_tags(&all)
    }

    /// The plan for the fields of one message: their numbers in this message, and their positions in the
    /// schema.
    fn from_tags(fields: &[(&[u32], usize)]) -> Self {
        let mut steps = Vec::new();
        let mut numbers: Vec<u32> = fields.iter().filter_map(|(tags, _)| tags.first().copied()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let inner: Vec<(&[u32], usize)> = fields
                .iter()
                .filter_map(|(tags, index)| {
                    let (first, rest) = tags.split_first()?;
                    (*first == number).then_some((rest, *index))
                })
                .collect();
            let step = match inner.as_slice() {
                [([], index)] => PlanStep::Field(*index),
                _ => PlanStep::Embedded(Plan::from_tags(&inner)),
            };
            steps.push((number, step));
        }
        Plan(steps.into_boxed_slice())
    }
}
