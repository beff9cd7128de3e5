//! The parent of an env test process.
//!
//! # Contract
//!
//! [`running_parent_id`] returns the process id of the parent that started this process. If this parent has ended, the
//! process has a new parent: a subreaper or the first process of the container. Two checks detect a new parent:
//!
//! - The scripts of `deploy/envtest` pass the id of their parent at their start. A new parent has another id.
//! - A child has the session of its first parent, unless the child leads a session. This check needs `/proc`.
//!
//! The first check misses a parent that ended before the script started, and does not exist without a script. The
//! second check misses a new parent of the same session, and any new parent of a process that leads a session.

use std::fs;

/// The id of a process, and the id of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessIds {
    id: u32,
    session: u32,
}

/// Returns the process id of the parent.
///
/// `expected_id` is the parent id that a script read at its start.
///
/// # Errors
///
/// The parent that started this process has ended.
pub(super) fn running_parent_id(expected_id: Option<u32>) -> Result<u32, Vec<String>> {
    let id = std::os::unix::process::parent_id();
    if let Some(expected_id) = expected_id
        && expected_id != id
    {
        let error = format!(
            "the parent process {expected_id} ended before the start, or `$APID` is a script that does not use `exec`"
        );
        return Err(vec![error]);
    }
    let (own_ids, parent_ids) = (ProcessIds::read("self"), ProcessIds::read(&id.to_string()));
    if own_ids.zip(parent_ids).is_some_and(|(own_ids, parent_ids)| is_orphan(own_ids, parent_ids)) {
        return Err(vec!["the parent process ended before the start".to_owned()]);
    }
    Ok(id)
}

/// Whether the current parent is not the process that started this one.
fn is_orphan(own: ProcessIds, parent: ProcessIds) -> bool {
    own.session != parent.session && own.session != own.id
}

impl ProcessIds {
    /// Reads the ids of a process; None on systems without `/proc`.
    fn read(process: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// Parses `ID (NAME) STATE PARENT GROUP SESSION …`. The name can contain spaces and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (id, _) = stat.split_once(' ')?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let session = fields.split(' ').nth(3)?;
        Some(ProcessIds { id: id.parse().ok()?, session: session.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_after_a_name_with_spaces_and_parentheses() {
        let stat = "42 (a) b (c)) S 41 40 39 0 -1 4194304 1";
        assert_eq!(ProcessIds::parse(stat), Some(ProcessIds { id: 42, session: 39 }));
        assert_eq!(ProcessIds::parse("42"), None);
        assert_eq!(ProcessIds::read("self").unwrap().id, std::process::id());
    }

    #[test]
    fn parent_of_another_session_did_not_start_the_process() {
        let ids = |id, session| ProcessIds { id, session };
        assert!(!is_orphan(ids(42, 40), ids(41, 40)), "a child has the session of its parent");
        assert!(is_orphan(ids(42, 40), ids(1, 1)), "the first process adopted the process");
        assert!(!is_orphan(ids(42, 42), ids(41, 40)), "the child leads a session");
    }

    #[test]
    fn running_parent_is_returned() {
        let id = std::os::unix::process::parent_id();
        assert_eq!(running_parent_id(None), Ok(id));
        assert_eq!(running_parent_id(Some(id)), Ok(id));
    }

    #[test]
    fn parent_with_unexpected_id_is_rejected() {
        let id = std::process::id();
        let error = running_parent_id(Some(id)).unwrap_err().concat();
        assert!(error.starts_with(&format!("the parent process {id} ended before the start")), "{error}");
    }
}
