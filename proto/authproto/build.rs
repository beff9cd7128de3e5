//! Generates Rust code from the .proto files with a compiler written in Rust, so that no `protoc` is needed.

const FILES: &[&str] = &[
    "auth/v1/types.proto",
    "auth/v1/decide.proto",
    "auth/v1/authn.proto",
    "auth/v1/authz.proto",
    "auth/v1/review.proto",
    "auth/v1/mirror.proto",
    "grpc/health/v1/health.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".auth.v1.ReviewRequest")
        .btree_map(".")
        .skip_debug([
            ".auth.v1.AuthenticateRequest",
            ".auth.v1.IssuedToken",
            ".auth.v1.MirrorSecret",
            ".auth.v1.Header",
        ])
        .compile_fds(descriptors)?;
    Ok(())
}
