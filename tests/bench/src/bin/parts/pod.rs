//! A pod of about 4 kB.

/// Returns the JSON of the pod, without whitespace.
pub(crate) fn body() -> String {
    let pod: serde_json::Value = serde_json::from_str(include_str!("pod.json")).expect("JSON");
    pod.to_string()
}
