//! Loops that keep objects in order: built-in namespaces, default service accounts, namespace termination.
