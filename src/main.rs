//! The binary: everything is in the library.

fn main() -> std::process::ExitCode {
    procyard::cli::main()
}
