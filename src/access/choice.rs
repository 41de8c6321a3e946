//! What of a spec is not everyone's to choose. Pure.

use super::grant::Freedoms;
use crate::process::{DEFAULT_INTERPRETER, Environment, Program, Spec};

/// Something of how a process runs that takes a freedom to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.field())]
pub enum Choice {
    /// Another user.
    User,
    /// Some of the server's variables.
    Inherit,
    /// All of them.
    InheritAll,
    /// The interpreter of a script.
    Interpreter,
}

impl Choice {
    /// The field that chooses it.
    pub fn field(self) -> &'static str {
        match self {
            Choice::User => "spec.user",
            Choice::Inherit => "spec.env.inherit",
            Choice::InheritAll => "spec.env.inherit_all",
            Choice::Interpreter => "spec.script.interpreter",
        }
    }

    /// The freedom that it takes, as a grant names it.
    pub fn freedom(self) -> &'static str {
        match self {
            Choice::User => "user",
            Choice::Inherit | Choice::InheritAll => "env",
            Choice::Interpreter => "interpreter",
        }
    }

    /// Whether a spec makes it.
    fn is_made(self, spec: &Spec) -> bool {
        let Environment { set: _, inherit, inherit_all } = &spec.env;
        match self {
            Choice::User => spec.user.is_some(),
            Choice::Inherit => !inherit.is_empty(),
            Choice::InheritAll => *inherit_all,
            Choice::Interpreter => match &spec.program {
                Program::Script(script) => script.interpreter != DEFAULT_INTERPRETER,
                Program::Shell(_) | Program::Argv(_) | Program::RawArgv(_) | Program::LeftOut => {
                    false
                }
            },
        }
    }
}

impl Freedoms {
    /// Refuses the first choice of a spec that takes a freedom which is not among these.
    pub fn allow(&self, spec: &Spec) -> Result<(), Choice> {
        let Freedoms { user, environment, interpreter } = *self;
        let all = [
            (Choice::User, user),
            (Choice::Inherit, environment),
            (Choice::InheritAll, environment),
            (Choice::Interpreter, interpreter),
        ];
        let refused = all.into_iter().find(|(choice, may)| !may && choice.is_made(spec));
        refused.map_or(Ok(()), |(choice, _)| Err(choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Grant;
    use crate::process::{Script, User};

    fn script(interpreter: &str) -> Spec {
        let interpreter = vec![interpreter.to_owned()];
        let script = Script { code: "c".into(), interpreter, filename: "f".into() };
        Spec { program: Program::Script(script), ..Spec::unknown() }
    }

    fn with(env: Environment) -> Spec {
        Spec { env, ..Spec::unknown() }
    }

    #[test]
    fn each_choice_takes_its_own_freedom_and_no_other() {
        let user = Some(User { uid: 1, gid: 1, groups: Vec::new() });
        for (spec, choice) in [
            (Spec { user, ..Spec::unknown() }, Choice::User),
            (
                with(Environment { inherit: vec!["A".into()], ..Environment::default() }),
                Choice::Inherit,
            ),
            (with(Environment { inherit_all: true, ..Environment::default() }), Choice::InheritAll),
            (script("python3"), Choice::Interpreter),
        ] {
            for may in ["user", "env", "interpreter", "none"] {
                let grant: Grant = format!("operator,may={may}").parse().unwrap();
                let expected = if may == choice.freedom() { Ok(()) } else { Err(choice) };
                assert_eq!(grant.may.allow(&spec), expected, "{may}");
            }
        }
    }

    #[test]
    fn what_is_everyones_takes_none() {
        let grant: Grant = "operator,may=none".parse().unwrap();
        let set = [("A".to_owned(), "b".to_owned())].into();
        let env = Environment { set, ..Environment::default() };
        for spec in [Spec::unknown(), with(env), script("/bin/sh")] {
            assert_eq!(grant.may.allow(&spec), Ok(()));
        }
    }
}
