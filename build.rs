//! Compiles the protos without protoc: protox parses them, prost and tonic write the Rust.

use std::path::PathBuf;

use prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let keeper = protox::compile(["procyard/keeper/v1/keeper.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(keeper)?;

    let public: FileDescriptorSet = protox::compile(["procyard/v1/service.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("procyard.v1.bin"), prost::Message::encode_to_vec(&public))?;
    let mut named = prost_build::Config::new();
    named.enable_type_names();
    // An answer copies a structured output that was encoded elsewhere.
    let value = (".google.protobuf.Value", "crate::grpc::EncodedValue");
    let service = tonic_prost_build::configure().bytes(".").extern_path(value.0, value.1);
    service.compile_fds_with_config(public, named)?;
    Ok(())
}
