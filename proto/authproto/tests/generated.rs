//! The checked-in code of the protocol is the code that the `.proto` files generate.
//!
//! # Contract
//!
//! The test compiles the `.proto` files with a compiler written in Rust, so that no `protoc` is needed, and
//! compares the result with `src/generated`. With `UPDATE=1` it writes that folder instead.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::path::Path;
use std::{env, fs, io};

const FILES: &[&str] = &[
    "auth/v1/types.proto",
    "auth/v1/decide.proto",
    "auth/v1/authn.proto",
    "auth/v1/authz.proto",
    "auth/v1/review.proto",
    "auth/v1/mirror.proto",
];

/// Messages with secrets, whose `Debug` output `src/redact.rs` defines.
const REDACTED: [&str; 4] =
    [".auth.v1.AuthenticateRequest", ".auth.v1.IssuedToken", ".auth.v1.MirrorSecret", ".auth.v1.Header"];

/// Generates the code into an empty folder.
fn generate(folder: &Path) -> Result<(), Box<dyn Error>> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    tonic_prost_build::configure()
        .bytes(".auth.v1.ReviewRequest")
        .btree_map(".")
        .skip_debug(REDACTED)
        .out_dir(folder)
        .compile_fds(protox::compile(FILES, [sources])?)?;
    Ok(())
}

/// The texts of the files in a folder by name.
fn texts(folder: &Path) -> io::Result<BTreeMap<OsString, String>> {
    let text = |entry: DirEntry| Ok((entry.file_name(), fs::read_to_string(entry.path())?));
    fs::read_dir(folder)?.map(|entry| entry.and_then(text)).collect()
}

/// The `.proto` files below a folder, relative to `root`.
fn proto_files(root: &Path, folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(proto_files(root, &path)?);
        } else if let Ok(inside) = path.strip_prefix(root) {
            files.insert(inside.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(files)
}

#[test]
fn every_proto_file_is_generated() -> io::Result<()> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/proto"));
    let listed: BTreeSet<String> = FILES.iter().map(|&file| file.to_owned()).collect();
    assert_eq!(proto_files(root, root)?, listed, "`FILES` lists each .proto file");
    Ok(())
}

#[test]
fn generated_code_matches_proto_files() -> Result<(), Box<dyn Error>> {
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("authproto-generated");
    generate(&folder)?;
    let (expected, found) = (texts(&folder)?, texts(&checked_in)?);
    if env::var_os("UPDATE").is_some() {
        found.keys().try_for_each(|name| fs::remove_file(checked_in.join(name)))?;
        expected.iter().try_for_each(|(name, text)| fs::write(checked_in.join(name), text))?;
        return Ok(());
    }
    let names: BTreeSet<&OsString> = found.keys().chain(expected.keys()).collect();
    let differing: Vec<_> =
        names.into_iter().filter(|name| found.get(*name) != expected.get(*name)).collect();
    assert!(
        differing.is_empty(),
        "{differing:?} differ from the .proto files; run `UPDATE=1 cargo test -p authproto --test generated`"
    );
    Ok(())
}
