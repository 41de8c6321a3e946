//! The binary: everything is in the library.

mod names;

fn main() -> std::process::ExitCode {
    names::look_up_without_modules();
    procyard::cli::main()
}
