//! The program of a spec: a shell line, arguments, or a script.

use super::problems::{Problems, Reported};
use super::values::without_nul;
use crate::grpc::clip::quoted;
use crate::grpc::pb;
use crate::process::{DEFAULT_INTERPRETER, Program, Script};

/// Most bytes of a script.
const CODE: usize = 1 << 20;
/// Most bytes of a file's name; the kernel's limit.
const FILENAME: usize = 255;

/// The field `spec.program`.
pub(super) fn program(
    problems: &mut Problems,
    program: Option<pb::spec::Program>,
) -> Result<Program, Reported> {
    match program {
        None => Err(problems.add("spec.program", "required: shell, argv or script")),
        Some(pb::spec::Program::Shell(line)) => shell(problems, line),
        Some(pb::spec::Program::Argv(argv)) => self::argv(problems, argv),
        Some(pb::spec::Program::Script(script)) => self::script(problems, script),
    }
}

fn shell(problems: &mut Problems, line: String) -> Result<Program, Reported> {
    if line.is_empty() {
        return Err(problems.add("spec.shell", "is empty: a line for /bin/sh"));
    }
    without_nul(problems, "spec.shell", &line)?;
    Ok(Program::Shell(line))
}

fn argv(problems: &mut Problems, argv: pb::Argv) -> Result<Program, Reported> {
    let pb::Argv { args, raw_args } = argv;
    match (args.is_empty(), raw_args.is_empty()) {
        (false, true) => {
            arguments(problems, "spec.argv.args", &args)?;
            Ok(Program::Argv(args))
        }
        (true, false) => {
            arguments(problems, "spec.argv.raw_args", &raw_args)?;
            Ok(raw(raw_args))
        }
        (true, true) => {
            Err(problems.add("spec.argv.args", "required: the program, then its arguments"))
        }
        (false, false) => {
            Err(problems.add("spec.argv.raw_args", "stands beside args: only one of the two"))
        }
    }
}

/// Arguments that are UTF-8 after all make the same spec as if they had been sent as such.
fn raw(args: Vec<prost::bytes::Bytes>) -> Program {
    let text: Option<Vec<String>> =
        args.iter().map(|arg| str::from_utf8(arg).ok().map(str::to_owned)).collect();
    match text {
        Some(args) => Program::Argv(args),
        None => Program::RawArgv(args.into_iter().map(Vec::from).collect()),
    }
}

fn script(problems: &mut Problems, script: pb::Script) -> Result<Program, Reported> {
    let pb::Script { code, interpreter, filename } = script;
    if code.is_empty() {
        problems.add("spec.script.code", "is empty: the code to run");
    } else if code.len() > CODE {
        let problem = format_args!("has {} bytes: at most {CODE} (1 MiB)", code.len());
        problems.add("spec.script.code", problem);
    }
    let default = || DEFAULT_INTERPRETER.map(str::to_owned).to_vec();
    let interpreter = if interpreter.is_empty() { default() } else { interpreter };
    let interpreted = arguments(problems, "spec.script.interpreter", &interpreter);
    let filename = self::filename(problems, filename)?;
    interpreted?;
    Ok(Program::Script(Script { code, interpreter, filename }))
}

fn filename(problems: &mut Problems, name: String) -> Result<String, Reported> {
    const FIELD: &str = "spec.script.filename";
    if name.is_empty() {
        return Ok("script".to_owned());
    }
    without_nul(problems, FIELD, &name)?;
    if name.len() > FILENAME {
        let problem = format_args!("has {} bytes: at most {FILENAME}", name.len());
        return Err(problems.add(FIELD, problem));
    }
    if name.contains('/') || name == "." || name == ".." {
        let problem = format_args!("is {}: the name of a file, without directories", quoted(&name));
        return Err(problems.add(FIELD, problem));
    }
    Ok(name)
}

/// A program and its arguments, as the kernel takes them.
pub(super) fn arguments<A: AsRef<[u8]>>(
    problems: &mut Problems,
    field: &str,
    args: &[A],
) -> Result<(), Reported> {
    let mut checked = Ok(());
    if args.first().is_some_and(|program| program.as_ref().is_empty()) {
        let problem = "is empty: the name or path of a program";
        checked = Err(problems.add(format_args!("{field}[0]"), problem));
    }
    for (at, arg) in args.iter().enumerate() {
        let whole = without_nul(problems, format_args!("{field}[{at}]"), arg);
        checked = checked.and(whole);
    }
    checked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;
    use crate::supervisor::Error;
    use pb::spec::Program as Wire;

    fn read(wire: Wire) -> Result<Program, Error> {
        Problems::collect(|problems| program(problems, Some(wire)))
    }

    fn args(args: &[&str]) -> Wire {
        let args = args.iter().map(|arg| (*arg).into()).collect();
        Wire::Argv(pb::Argv { args, raw_args: Vec::new() })
    }

    fn raw_args(args: &[&'static [u8]]) -> Wire {
        let raw_args = args.iter().map(|arg| prost::bytes::Bytes::from_static(arg)).collect();
        Wire::Argv(pb::Argv { args: Vec::new(), raw_args })
    }

    fn script(change: fn(&mut pb::Script)) -> Wire {
        let mut script = pb::Script { code: "exit".into(), ..Default::default() };
        change(&mut script);
        Wire::Script(script)
    }

    #[test]
    fn raw_arguments_that_are_text_are_text() {
        assert_eq!(read(raw_args(&[b"a", b"b"])), read(args(&["a", "b"])));
        let raw = Program::RawArgv(vec![b"a".to_vec(), b"\xff".to_vec()]);
        assert_eq!(read(raw_args(&[b"a", b"\xff"])), Ok(raw));
    }

    #[test]
    fn a_script_has_an_interpreter_and_a_name() {
        let (code, filename) = ("exit".to_owned(), "script".to_owned());
        let filled = Script { code, interpreter: vec!["/bin/sh".into()], filename };
        assert_eq!(read(script(|_| {})), Ok(Program::Script(filled)));
    }

    #[test]
    fn what_cannot_be_executed_is_refused() {
        let both = Wire::Argv(pb::Argv { args: vec!["a".into()], raw_args: vec!["b".into()] });
        let refusals = [
            (Wire::Shell(String::new()), "spec.shell: is empty"),
            (Wire::Shell("a\0".into()), "spec.shell: has a NUL as byte 1"),
            (args(&[]), "spec.argv.args: required"),
            (args(&[""]), "spec.argv.args[0]: is empty"),
            (args(&["a", "", "\0"]), "spec.argv.args[2]: has a NUL as byte 0"),
            (raw_args(&[b"a", b"\xff\0"]), "spec.argv.raw_args[1]: has a NUL as byte 1"),
            (both, "spec.argv.raw_args: stands beside args"),
            (script(|script| script.code.clear()), "spec.script.code: is empty"),
            (
                script(|script| script.code = "x".repeat(CODE + 1)),
                "spec.script.code: has 1048577 bytes: at most 1048576",
            ),
            (
                script(|script| script.interpreter = vec![String::new()]),
                "spec.script.interpreter[0]: is empty",
            ),
            (
                script(|script| script.filename = "x".repeat(256)),
                "spec.script.filename: has 256 bytes: at most 255",
            ),
            (
                script(|script| script.filename = "../x".into()),
                "spec.script.filename: is \"../x\": the name of a file, without directories",
            ),
            (script(|script| script.filename = "..".into()), "spec.script.filename: is \"..\""),
            (script(|script| script.filename = "a\0".into()), "spec.script.filename: has a NUL"),
        ];
        for (wire, text) in refusals {
            let told = refused(read(wire));
            assert!(told.len() == 1 && told[0].starts_with(text), "{told:?} is not {text}");
        }
        let none = Problems::collect(|problems| program(problems, None));
        assert_eq!(refused(none), ["spec.program: required: shell, argv or script"]);
    }
}
