//! Hand-made histories: each check finds what it is for.
