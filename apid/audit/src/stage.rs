//! Levels and stages of audit events.

use std::str::FromStr;

/// The level of detail of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The request has no events.
    #[default]
    None,
    /// User, time, resource, verb and status, without bodies.
    Metadata,
    /// [`Level::Metadata`] and the object in the request.
    Request,
    /// [`Level::Request`] and the object in the response.
    RequestResponse,
}

impl Level {
    /// The names of all levels, from the least to the most content.
    pub const NAMES: [&'static str; 4] = ["None", "Metadata", "Request", "RequestResponse"];
    /// All levels, in the order of [`Level::NAMES`].
    pub(crate) const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// The name in policies and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// A text is not the name of a level or of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName;

impl FromStr for Level {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Level::ALL.into_iter().find(|level| level.as_str() == name).ok_or(UnknownName)
    }
}

/// The stage of the request at which an event is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The user is authenticated, and nothing has been done for the request.
    RequestReceived,
    /// The head of a long-running response has been sent.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl Stage {
    /// The names of all stages, separated by commas, as messages show them.
    pub(crate) const NAMES: &'static str = "RequestReceived,ResponseStarted,ResponseComplete,Panic";
    const ALL: [Stage; 4] =
        [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// The name in policies and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Stage::RequestReceived => 1,
            Stage::ResponseStarted => 2,
            Stage::ResponseComplete => 4,
            Stage::Panic => 8,
        }
    }
}

impl FromStr for Stage {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Stage::ALL.into_iter().find(|stage| stage.as_str() == name).ok_or(UnknownName)
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// Whether the set contains a stage.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & stage.bit() != 0
    }

    /// Returns the stages of both sets.
    #[must_use]
    pub fn union(self, other: Stages) -> Stages {
        Stages(self.0 | other.0)
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        Stages(stages.into_iter().fold(0, |bits, stage| bits | stage.bit()))
    }
}
